"""The batch loop: takes requests, keeps a fixed number of them running, and yields finished answers.

In: numbered requests, taken as there is room for them. Out: a `BatchAnswer` for each, in the order in which they
finish. Nothing is drafted. Runs in the caller's thread, along with whatever else the scheduler has to do.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Generator, Iterator
from dataclasses import dataclass

from edgeinfer.engine.requests.request import Request
from edgeinfer.engine.scheduler.output import Waiter
from edgeinfer.engine.scheduler.scheduler import PassCounts
from edgeinfer.engine.scheduler.sequence import ScheduledSequence
from edgeinfer.engine.scheduler.stats import Stats
from edgeinfer.engine.scheduler.step_driver import StepDriver
from edgeinfer.errors import EdgeInferError
from edgeinfer.graph.step import PAGE
from edgeinfer.models.text import Tokenizer


@dataclass(frozen=True, slots=True)
class NumberedRequest:
    """A request, or the error in its place, with the number of its answer."""

    number: int
    request: Request | EdgeInferError


@dataclass(frozen=True, slots=True)
class BatchAnswer:
    """A finished answer; `error`: why there is none."""

    number: int
    text: str = ""
    tokens: tuple[int, ...] = ()
    stats: Stats | None = None
    error: Exception | None = None


class Batcher:
    """Runs up to `n_parallel` answers at a time. Can be run once."""

    def __init__(self, driver: StepDriver, tokenizer: Tokenizer, n_parallel: int) -> None:
        self._driver, self._scheduler, self._tokenizer = driver, driver.scheduler, tokenizer
        self._pool = driver.scheduler.pool
        self._n_parallel = n_parallel
        self._members: dict[ScheduledSequence, int] = {}
        self._ended: deque[ScheduledSequence] = deque()
        self._stopped = self._is_exhausted = False
        self._waiter = Waiter()
        self.counts = PassCounts()

    def stop(self) -> None:
        """End within one step: running requests end as they are, no others start. May be called from any thread."""
        self._stopped = True
        for sequence in tuple(self._members):
            sequence.stop()

    def answers(self, requests: Iterator[NumberedRequest]) -> Generator[BatchAnswer, None, None]:
        """Answer all requests; each is taken when its turn comes. Raises EngineClosed, and as evaluators do."""
        started, before = time.perf_counter(), self._scheduler.counts
        n_passes, n_evaluated = before.passes, before.n_evaluated
        try:
            while True:
                yield from self._enter(requests)
                if not self._members:
                    return
                self._driver.wait_for(self._waiter, self._goes_on)
                self.counts.passes = self._scheduler.counts.passes - n_passes
                self.counts.n_evaluated = self._scheduler.counts.n_evaluated - n_evaluated
                self.counts.seconds = time.perf_counter() - started
                while self._ended:
                    yield self._result(self._ended.popleft())
        finally:  # may run in a finalizer at any point, so do not wait for anything
            for sequence in tuple(self._members):
                self._scheduler.abandon(sequence)

    def leave(self) -> None:
        """End the running requests; they are over when this returns."""
        for sequence in tuple(self._members):
            self._scheduler.leave(sequence)

    def _goes_on(self) -> bool:
        """Whether an answer has finished, or another one may be taken."""
        return bool(self._ended) or self._has_room

    @property
    def _has_room(self) -> bool:
        """Whether another answer could start at once."""
        if self._stopped or self._is_exhausted or len(self._members) >= self._n_parallel:
            return False
        return not self._scheduler.admission.is_full

    def _enter(self, requests: Iterator[NumberedRequest]) -> Iterator[BatchAnswer]:
        """Take requests while there is room; those that cannot start have ended with an error."""
        while self._has_room:
            numbered = next(requests, None)
            if numbered is None:
                self._is_exhausted = True
                return
            try:
                if not isinstance(numbered.request, Request):
                    raise numbered.request
                sequence = self._sequence(numbered.request)
            except EdgeInferError as reason:
                self._pool.check_open()
                yield BatchAnswer(numbered.number, error=reason)
                continue
            self._members[sequence] = numbered.number
            self._scheduler.enter(sequence)
            if self._stopped:
                sequence.stop()

    def _sequence(self, request: Request) -> ScheduledSequence:
        """A sequence with room for the whole answer."""
        n_pages = self._scheduler.admission.pages_of(request)
        n_tokens = min(n_pages * PAGE, self._pool.executor.limits.n_context)
        own = self._pool.reserve(n_tokens), self._tokenizer, request
        sequence = ScheduledSequence(*own, priority="background", counts_energy=False)
        sequence.n_pages, sequence.is_driven = n_pages, True
        sequence.released, sequence.notify = self._release, self._waiter.wake
        return sequence

    def _release(self, sequence: ScheduledSequence) -> None:
        """Called when an answer is over: its memory is free for others."""
        sequence.cached.close()
        self._ended.append(sequence)

    def _result(self, sequence: ScheduledSequence) -> BatchAnswer:
        """The result of an answer. Raises the error if it ended all answers."""
        number = self._members.pop(sequence)
        self.counts.n_generated += len(sequence.tokens)
        if sequence.error is None:
            return BatchAnswer(number, sequence.text, sequence.tokens, sequence.stats)
        self._pool.check_open()
        if isinstance(sequence.error, Exception) and sequence.failed_alone:
            return BatchAnswer(number, error=sequence.error)
        raise sequence.error
