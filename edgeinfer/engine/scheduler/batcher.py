"""The batch loop: requests in, finished answers out, so many running at a time.

In: numbered requests, taken as there is room for them. Out: a `BatchAnswer` for each, as they end. Nothing is drafted.
Works in the caller's thread, beside whatever else its scheduler has to do.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Generator, Iterator
from dataclasses import dataclass

from edgeinfer.engine.requests.request import Request
from edgeinfer.engine.scheduler.answering import Answer
from edgeinfer.engine.scheduler.scheduler import Counts
from edgeinfer.engine.scheduler.step_driver import StepDriver
from edgeinfer.engine.scheduler.ticket import Ticket, Waiter
from edgeinfer.engine.stats import Stats
from edgeinfer.errors import EdgeInferError
from edgeinfer.graph.step import PAGE
from edgeinfer.models.text import Tokenizer


@dataclass(frozen=True, slots=True)
class Numbered:
    """A request, or why there is none, by the number its answer is to have."""

    number: int
    request: Request | EdgeInferError


@dataclass(frozen=True, slots=True)
class BatchAnswer:
    """An answer that has ended; `error`: why there is none."""

    number: int
    text: str = ""
    tokens: tuple[int, ...] = ()
    stats: Stats | None = None
    error: Exception | None = None


class Batcher:
    """Leads up to `n_parallel` answers at a time. Runs once."""

    def __init__(self, driver: StepDriver, tokenizer: Tokenizer, n_parallel: int) -> None:
        self._driver, self._scheduler, self._tokenizer = driver, driver.scheduler, tokenizer
        self._pool = driver.scheduler.pool
        self._n_parallel = n_parallel
        self._members: dict[Ticket, int] = {}
        self._ended: deque[Ticket] = deque()
        self._stopped = self._is_exhausted = False
        self._waiter = Waiter()
        self.counts = Counts()

    def stop(self) -> None:
        """End within a step, from any thread: running requests end as they are, no others begin."""
        self._stopped = True
        for ticket in tuple(self._members):
            ticket.answer.stop()

    def answers(self, requests: Iterator[Numbered]) -> Generator[BatchAnswer, None, None]:
        """Answer all requests; each is taken when its turn comes. Raises as evaluators do, and EngineClosed."""
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
        finally:  # perhaps in a finalizer, in the middle of anything: nobody is waited for
            for ticket in tuple(self._members):
                self._scheduler.abandon(ticket)

    def leave(self) -> None:
        """End the running requests: they are over when this returns."""
        for ticket in tuple(self._members):
            self._scheduler.leave(ticket)

    def _goes_on(self) -> bool:
        """Whether an answer has ended, or another one may be taken."""
        return bool(self._ended) or self._has_room

    @property
    def _has_room(self) -> bool:
        """Whether another answer could begin at once."""
        if self._stopped or self._is_exhausted or len(self._members) >= self._n_parallel:
            return False
        return not self._scheduler.admission.is_full

    def _enter(self, requests: Iterator[Numbered]) -> Iterator[BatchAnswer]:
        """Take requests while there is room; those that cannot begin have ended."""
        while self._has_room:
            wanted = next(requests, None)
            if wanted is None:
                self._is_exhausted = True
                return
            try:
                if not isinstance(wanted.request, Request):
                    raise wanted.request
                ticket = self._ticket(wanted.request)
            except EdgeInferError as reason:
                self._pool.check_open()
                yield BatchAnswer(wanted.number, error=reason)
                continue
            self._members[ticket] = wanted.number
            self._scheduler.enter(ticket)
            if self._stopped:
                ticket.answer.stop()

    def _ticket(self, request: Request) -> Ticket:
        """An answer's place in the scheduler."""
        n_pages = self._scheduler.admission.pages_of(request)
        n_tokens = min(n_pages * PAGE, self._pool.executor.limits.n_context)
        answer = Answer(self._pool.reserve(n_tokens), self._tokenizer, request, counts_energy=False)
        ticket = Ticket(answer, "background", is_driven=True, released=self._release, notify=self._waiter.wake)
        ticket.n_pages = n_pages
        return ticket

    def _release(self, ticket: Ticket) -> None:
        """An answer is over: its memory is for others."""
        ticket.answer.cached.close()
        self._ended.append(ticket)

    def _result(self, ticket: Ticket) -> BatchAnswer:
        """What became of an answer. Raises what ended all of them."""
        number, answer = self._members.pop(ticket), ticket.answer
        self.counts.n_generated += len(answer.tokens)
        if ticket.error is None:
            return BatchAnswer(number, answer.text, answer.tokens, answer.stats)
        self._pool.check_open()
        if isinstance(ticket.error, Exception) and ticket.failed_alone:
            return BatchAnswer(number, error=ticket.error)
        raise ticket.error
