"""The batch loop: requests in, finished answers out; many in the making, a pass over all of them at a time.

In: numbered requests, as they are wanted. Out: a `BatchAnswer` for each, as they end. An answer begins when memory has
room for it; where memory runs short all the same, the one begun last gives its up and reads its text again later.
Prompts are read in the passes in which others go on. Nothing is drafted. Works in the caller's thread.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass

from edgeinfer.backends.base import PAGE, Batch
from edgeinfer.backends.stopping import Interrupted, StopFlag
from edgeinfer.engine.answering import Answer, Work
from edgeinfer.engine.batching.passes import Given, Passes
from edgeinfer.engine.cached import Pool
from edgeinfer.engine.evaluators import Interruptible
from edgeinfer.engine.kvcache import pages_for
from edgeinfer.engine.request import Request
from edgeinfer.engine.stats import Stats
from edgeinfer.errors import DoesNotFit, EdgeInferError
from edgeinfer.models.text import Tokenizer

EXPECTED_TOKENS = 256
"""Tokens that room is kept for where an answer's length is not limited."""


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
    error: EdgeInferError | None = None


@dataclass(slots=True)
class Counts:
    """What was done so far: passes, tokens evaluated in them, tokens of answers, and seconds since the beginning."""

    passes: int = 0
    n_evaluated: int = 0
    n_generated: int = 0
    seconds: float = 0.0


@dataclass(slots=True)
class _Member:
    """An answer in the making. `parked`: its memory was taken, and it waits until another one ends."""

    number: int
    answer: Answer
    n_pages: int
    parked: bool = False

    @property
    def sequence(self) -> int:
        return self.answer.cached.sequence


class Batcher:
    """Leads up to `n_parallel` answers at a time, no more than a pass has outputs. Runs once."""

    def __init__(self, pool: Pool, tokenizer: Tokenizer, passes: Passes, n_parallel: int) -> None:
        self._pool, self._tokenizer, self._passes = pool, tokenizer, passes
        self._limits = pool.executor.limits
        self._n_pages = max(self._limits.n_pages, pool.executor.n_free_pages)  # of all homes of sequences
        self._n_parallel = min(n_parallel, self._limits.max_outputs)
        self._members: list[_Member] = []
        self._works: dict[int, Work] = {}  # of sequences whose batch is under way
        self._waiting: Numbered | None = None
        self._stop_asked = StopFlag()
        self.counts = Counts()

    def stop(self) -> None:
        """End within a step, from any thread: answers in the making end as they are, no others begin."""
        self._stop_asked.set()

    def answers(self, requests: Iterator[Numbered]) -> Generator[BatchAnswer, None, None]:
        """Answer all requests; each is taken when its turn comes. Raises as evaluators do, and EngineClosed."""
        started = time.perf_counter()
        try:
            while True:
                yield from self._admit(requests)
                if not self._members:
                    return
                yield from self._step()
                self.counts.seconds = time.perf_counter() - started
        finally:
            for member in tuple(self._members):
                self._finish(member)

    def _admit(self, requests: Iterator[Numbered]) -> Iterator[BatchAnswer]:
        """Begin answers while there is room; those that cannot begin have ended."""
        while len(self._members) < self._n_parallel and not self._stop_asked.is_set():
            if self._waiting is None:
                self._waiting = next(requests, None)
            if self._waiting is None:
                return
            number, request = self._waiting.number, self._waiting.request
            if isinstance(request, Request):
                n_pages = self._pages_of(request)
                if self._members and n_pages > self._n_pages - sum(each.n_pages for each in self._members):
                    return
            self._waiting = None
            try:
                if not isinstance(request, Request):
                    raise request
                self._members.append(self._begun(number, request, n_pages))
            except EdgeInferError as reason:
                self._pool.check_open()
                yield BatchAnswer(number, error=reason)

    def _pages_of(self, request: Request) -> int:
        """Pages that room is kept for."""
        n_answer = EXPECTED_TOKENS if request.max_tokens is None else request.max_tokens
        return pages_for(min(len(request.prompt) + n_answer, self._limits.n_context))

    def _begun(self, number: int, request: Request, n_pages: int) -> _Member:
        cached = self._pool.open(min(n_pages * PAGE, self._limits.n_context))
        try:
            answer = Answer(cached, self._tokenizer, request, counts_energy=False)
            answer.begin()
        except BaseException:
            cached.close()
            raise
        return _Member(number, answer, n_pages)

    def _step(self) -> Iterator[BatchAnswer]:
        """One pass; the answers that ended with it."""
        executor = self._pool.executor
        executor.regime.rest(self._stop_asked)
        if self._stop_asked.is_set():
            for member in self._members:
                member.answer.stop()
                member.answer.cancel()
        started = time.perf_counter()
        with self._pool.lock:
            self._pool.check_open()
            if isinstance(executor, Interruptible):
                executor.heed(self._stop_asked)
            works = self._gather()
            if works or self._works:
                self._take(self._given(works))
                executor.regime.worked(started)
        for member in tuple(self._members):
            if member.answer.is_done:
                yield self._finish(member)

    def _gather(self) -> dict[int, Work]:
        """What the answers want of the next pass, by sequence: first those that need one token, then prompts."""
        left = self._limits.max_tokens
        works: dict[int, Work] = {}
        for member in sorted(self._members, key=lambda each: each.answer.n_missing > 1):
            if left < 1 or member.parked or member.sequence in self._works:
                continue
            work = member.answer.work(left)
            if work is not None:
                works[member.sequence] = work
                left -= len(work.batch.tokens)
        return works

    def _given(self, works: dict[int, Work]) -> dict[int, Given]:
        """Run a pass; where memory is short those that rest give theirs up, then the answers begun last."""
        while True:
            batches: Sequence[Batch] = [work.batch for work in works.values()]
            try:
                given = self._passes.run(batches)
            except Interrupted:
                for member in self._members:
                    member.answer.cancel()
                return {}
            except DoesNotFit as reason:
                if not self._pool.make_room(()):
                    self._park(works, reason)
                continue
            self._works.update(works)
            self.counts.passes += 1
            self.counts.n_evaluated += sum(len(batch.tokens) for batch in batches)
            return dict(given)

    def _park(self, works: dict[int, Work], reason: DoesNotFit) -> None:
        """Take the memory of the answer begun last; raises `reason` where it is the only one."""
        able = [each for each in self._members if not each.parked and each.sequence not in self._works]
        if len(able) + len(self._works) < 2 or not able:
            raise reason
        youngest = able[-1]
        youngest.parked = True
        youngest.answer.cached.forget()
        works.pop(youngest.sequence, None)

    def _take(self, given: dict[int, Given]) -> None:
        """Let answers go on with what their batches gave."""
        for member in self._members:
            found = given.get(member.sequence)
            if found is None:
                continue
            work, answer = self._works.pop(member.sequence), member.answer
            for token in answer.take(work, found.logits, found.peaks, found.batch, found.first):
                answer.show(token)
                self.counts.n_generated += 1
                if answer.is_done:
                    break

    def _finish(self, member: _Member) -> BatchAnswer:
        """End an answer and give its memory to others."""
        answer = member.answer
        self._members.remove(member)
        self._works.pop(member.sequence, None)
        answer.rest()
        answer.end()
        answer.cached.close()
        for each in self._members:
            each.parked = False
        return BatchAnswer(member.number, answer.text, answer.tokens, answer.stats)
