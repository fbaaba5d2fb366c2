"""A batch of prompts over one loaded model or several replicas of it: what `LLM.batch` returns.

In: prompts, taken from an iterable as they are needed, and batchers. Out: answers through a plain iterator, in the
order in which they finish. A single batcher runs in the caller's thread; several run in one thread each and take
prompts from one shared queue.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from edgeinfer.engine.requests.conversation import Messages
from edgeinfer.engine.requests.prompts import Prompts
from edgeinfer.engine.requests.request import Options
from edgeinfer.engine.scheduler.batcher import BatchAnswer, Batcher, NumberedRequest
from edgeinfer.engine.scheduler.scheduler import PassCounts
from edgeinfer.errors import EdgeInferError


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt with its own options: a text to continue, or a conversation to answer."""

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
