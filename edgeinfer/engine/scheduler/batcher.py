"""Batches: many prompts over one loaded model or several replicas of it, answered a fixed number at a time.

In: prompts, taken from an iterable as they are needed. Out: a `BatchAnswer` for each, in the order in which they
finish, through a `BatchStream`, which `LLM.batch` returns. A single batcher runs in the caller's thread, along with
whatever else the scheduler has to do; several run in one thread each and take prompts from one shared queue.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from edgeinfer.engine.requests.conversation import Messages
from edgeinfer.engine.requests.drafting import ClosingSpeculator
from edgeinfer.engine.requests.prompts import Prompts
from edgeinfer.engine.requests.request import Options, Request
from edgeinfer.engine.run.cached import CachedSequence
from edgeinfer.engine.scheduler.output import Waiter
from edgeinfer.engine.scheduler.sequence import ScheduledSequence
from edgeinfer.engine.scheduler.stats import PassCounts, Stats
from edgeinfer.engine.scheduler.step_driver import StepDriver
from edgeinfer.engine.scheduler.token_choice import TokenLogprobs
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
    """A finished answer; `error`: why there is none. `content`: the text without thoughts; `reasoning`: these.

    `prompt_logprobs`: of the prompt's tokens from the one on that the option `scored_from` names.
    """

    number: int
    text: str = ""
    tokens: tuple[int, ...] = ()
    stats: Stats | None = None
    error: Exception | None = None
    content: str = ""
    reasoning: str = ""
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()


class Batcher:
    """Runs up to `n_parallel` answers at a time. Can be run once."""

    def __init__(
        self,
        driver: StepDriver,
        tokenizer: Tokenizer,
        n_parallel: int,
        opens: Callable[[], ClosingSpeculator | None] | None = None,
        reserve: Callable[[int], CachedSequence] | None = None,
    ) -> None:
        """`opens`: creates the drafts of one answer that begins, or none; None: nothing is ever drafted.

        `reserve`: creates what an answer of so many tokens is cached in, with a beginning of it or not; None: empty.
        """
        self._opens, self._reserve = opens, reserve or driver.scheduler.pool.reserve
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
        started, before = time.perf_counter(), replace(self._scheduler.counts)
        try:
            while True:
                yield from self._enter(requests)
                if not self._members:
                    return
                self._driver.wait_for(self._waiter, self._goes_on)
                self.counts.count(self._scheduler.counts, since=before)
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
        cached = self._reserve(n_tokens)
        own = cached, self._tokenizer, request
        shares = request.reuse == "shifted" and request.scored_from is None  # others may use what it leaves
        sequence = ScheduledSequence(
            *own, opens=self._opens, priority="background", shares_prefix=shares, counts_energy=False
        )
        sequence.n_pages, sequence.n_shared_pages = n_pages, cached.n_cached // PAGE
        sequence.is_driven = sequence.is_batched = True
        sequence.released, sequence.notify = self._release, self._waiter.wake
        return sequence

    def _release(self, sequence: ScheduledSequence) -> None:
        """Called when an answer is over: its memory is free for others."""
        if not sequence.shares_prefix:
            sequence.cached.close()
        self._ended.append(sequence)

    def _result(self, sequence: ScheduledSequence) -> BatchAnswer:
        """The result of an answer. Raises the error if it ended all answers."""
        number = self._members.pop(sequence)
        self.counts.n_generated += len(sequence.tokens)
        if sequence.stats is not None and sequence.stats.draft is not None:
            self.counts.draft_s += sequence.stats.draft.seconds
        if sequence.error is None:
            text, reader = sequence.output.text(), sequence.request.reader()
            content = text if reader is None else reader.push(text) + reader.finish()
            thoughts = "" if reader is None else reader.thoughts
            scores = tuple(sequence.scores.found)
            return BatchAnswer(number, text, sequence.tokens, sequence.stats, None, content, thoughts, scores)
        self._pool.check_open()
        if isinstance(sequence.error, Exception) and sequence.failed_alone:
            return BatchAnswer(number, error=sequence.error)
        raise sequence.error


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt with its own options: a text to continue, or a conversation to answer.

    for answer in llm.batch([edgeinfer.Prompt("Once upon a time", {"max_tokens": 5}), "Far away"], max_tokens=20):
        print(answer.text)
    """

    content: str | Messages
    options: Options = field(default_factory=Options)


class BatchStream:
    """Iterate over it to generate; it yields answers as they finish.

    `stop()` may be called from any thread; call `close()` to give up early.
    """

    def __init__(
        self,
        batchers: Sequence[Batcher],
        prompts: Iterable[str | Messages | Prompt],
        form: Prompts,
        options: Options,
    ) -> None:
        self._batchers = batchers
        requests = _Shared(_requests(prompts, form, options))
        self._threads: list[threading.Thread] = []
        alone = len(batchers) == 1
        self._answers = batchers[0].answers(requests) if alone else _side_by_side(batchers, requests, self._threads)
        self._lock = threading.RLock()

    def __iter__(self) -> Iterator[BatchAnswer]:
        return self

    def __next__(self) -> BatchAnswer:
        with self._lock:
            return next(self._answers)

    @property
    def counts(self) -> PassCounts:
        """Work done so far, summed over all replicas; seconds are those of the slowest replica."""
        found = [batcher.counts for batcher in self._batchers]
        return PassCounts(
            passes=sum(each.passes for each in found),
            n_evaluated=sum(each.n_evaluated for each in found),
            n_generated=sum(each.n_generated for each in found),
            n_drafted=sum(each.n_drafted for each in found),
            n_accepted=sum(each.n_accepted for each in found),
            draft_s=max(each.draft_s for each in found),
            seconds=max(each.seconds for each in found),
        )

    def stop(self) -> None:
        """End within one step: running requests return the text they have, and no new ones start."""
        for batcher in self._batchers:
            batcher.stop()

    def close(self) -> None:
        """Stop, and release the running requests."""
        self.stop()
        with self._lock:
            self._answers.close()
            for thread in self._threads:
                thread.join()
        for batcher in self._batchers:
            batcher.leave()


def _requests(prompts: Iterable[str | Messages | Prompt], form: Prompts, options: Options) -> Iterator[NumberedRequest]:
    """Yield numbered requests; an error in a prompt becomes the error of its own answer."""
    for number, prompt in enumerate(prompts):
        given = prompt if isinstance(prompt, Prompt) else Prompt(prompt)
        merged: Options = {**options, **given.options}
        try:
            if isinstance(given.content, str):
                yield NumberedRequest(number, form.text(given.content, merged))
            else:
                yield NumberedRequest(number, form.chat(given.content, merged))
        except EdgeInferError as reason:
            yield NumberedRequest(number, reason)


class _Shared:
    """An iterator that several threads can take items from."""

    def __init__(self, requests: Iterator[NumberedRequest]) -> None:
        self._requests, self._lock = requests, threading.Lock()

    def __iter__(self) -> Iterator[NumberedRequest]:
        return self

    def __next__(self) -> NumberedRequest:
        with self._lock:
            return next(self._requests)


def _side_by_side(
    batchers: Sequence[Batcher], requests: Iterator[NumberedRequest], threads: list[threading.Thread]
) -> Generator[BatchAnswer, None, None]:
    """Yield the answers of several batchers, each running in its own thread; if one fails, the others stop too.

    `threads` receives the threads started here. After the generator is closed they end by themselves.
    """
    found: queue.SimpleQueue[BatchAnswer | BaseException | None] = queue.SimpleQueue()

    def lead(batcher: Batcher) -> None:
        try:
            for answer in batcher.answers(requests):
                found.put(answer)
            found.put(None)
        except BaseException as reason:
            found.put(reason)

    threads += [threading.Thread(target=lead, args=(batcher,), name="edgeinfer replica") for batcher in batchers]
    for thread in threads:
        thread.start()
    n_left, failure = len(threads), None
    try:
        while n_left:
            answer = found.get()
            if isinstance(answer, BatchAnswer):
                yield answer
                continue
            n_left -= 1
            if answer is not None and failure is None:
                failure = answer
                for batcher in batchers:
                    batcher.stop()
    finally:  # may run in a finalizer at any point, so do not wait for anything
        for batcher in batchers:
            batcher.stop()
    for thread in threads:
        thread.join()
    if failure is not None:
        raise failure
