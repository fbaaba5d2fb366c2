"""Answers written side by side: several sequences of the scheduler, driven together.

In: sequences. Out: pieces of text with the number of their answer, as they arrive. With a plain iterator the caller's
thread generates them, with an asynchronous one the engine's thread does.
"""

from __future__ import annotations

import threading
import time
from collections.abc import AsyncIterator, Generator, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from edgeinfer.engine.scheduler.output import Waiter
from edgeinfer.engine.scheduler.sequence import ScheduledSequence
from edgeinfer.engine.scheduler.step_driver import StepDriver
from edgeinfer.engine.scheduler.stream import TextStream

if TYPE_CHECKING:
    import asyncio


@dataclass(frozen=True, slots=True)
class AnswerText:
    """A piece of text of one of several answers. `number`: its place among them, from 0 on."""

    number: int
    text: str


class SideBySide:
    """Answers that are written side by side. Iterate over them once, with `for` or `async for`, to generate them.

    `answers` are the answers as streams, to look at and not to iterate over.
    """

    def __init__(self, sequences: Sequence[ScheduledSequence], driver: StepDriver) -> None:
        """Generates nothing before the first piece is requested."""
        self._sequences, self._driver = sequences, driver
        self.answers = tuple(TextStream(sequence, driver) for sequence in sequences)
        self._waiter = Waiter()
        self._told_over: set[int] = set()
        self._begun_s = 0.0
        self.seconds = 0.0
        """From the first piece requested to the end of all answers."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._arrived: asyncio.Event | None = None
        self._pieces = self._generated()
        self._lock = threading.Lock()

    def __iter__(self) -> Iterator[AnswerText]:
        return self

    def __next__(self) -> AnswerText:
        with self._lock:
            return next(self._pieces)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @property
    def n_generated(self) -> int:
        """Tokens of all answers so far."""
        return sum(answer.live.n_generated for answer in self.answers)

    def stop(self) -> None:
        """End all answers within one step; may be called from any thread."""
        for answer in self.answers:
            answer.stop()

    def close(self) -> None:
        """Stop, and release everything."""
        self.stop()
        with self._lock:
            self._pieces.close()
        for sequence in self._sequences:
            if sequence.has_entered and not sequence.is_over:
                self._driver.scheduler.leave(sequence)

    def _look(self) -> None:
        """Called when something is new, to decide about answers."""

    def _left(self) -> None:
        """Called once the answers have left the scheduler; may run in a finalizer at any point."""

    def _failed(self, number: int, sequence: ScheduledSequence) -> None:
        """Called when an error has ended an answer: raises it."""
        assert sequence.error is not None
        raise sequence.error

    def _wake(self) -> None:
        """Something is new. Called by the scheduler's thread, and by others."""
        self._waiter.wake()
        if self._loop is not None and self._arrived is not None and not self._arrived.is_set():
            with suppress(RuntimeError):  # the loop is closed: nothing waits any more
                self._loop.call_soon_threadsafe(self._arrived.set)

    def _has_news(self) -> bool:
        """Whether there is text, or a answer is over."""
        numbered = enumerate(self._sequences)
        return any(each.output.n_pieces or (each.is_over and n not in self._told_over) for n, each in numbered)

    @property
    def _is_over(self) -> bool:
        """Whether nothing more comes."""
        return len(self._told_over) == len(self._sequences)

    def _news(self) -> list[AnswerText]:
        """Take the text that has come, and decide. Raises the error that ended a answer."""
        pieces = ((number, "".join(each.output.take_all())) for number, each in enumerate(self._sequences))
        found = [AnswerText(number, text) for number, text in pieces if text]
        for number, sequence in enumerate(self._sequences):
            if sequence.is_over and not sequence.output.n_pieces:
                if sequence.error is not None and number not in self._told_over:
                    self._failed(number, sequence)
                self._told_over.add(number)
        self.seconds = time.monotonic() - self._begun_s
        self._look()
        return found

    def _end(self) -> None:
        """Leave the scheduler without waiting: it may run in a finalizer at any point."""
        for sequence in self._sequences:
            self._driver.scheduler.abandon(sequence)
        self._left()

    def _generated(self) -> Generator[AnswerText, None, None]:
        """The text of all answers, generated in the caller's thread."""
        self._begun_s = time.monotonic()
        try:
            for sequence in self._sequences:
                sequence.is_driven, sequence.notify = True, self._waiter.wake
                self._driver.scheduler.enter(sequence)
            while not self._is_over:
                self._driver.wait_for(self._waiter, self._has_news)
                yield from self._news()
        finally:
            self._end()

    async def __aiter__(self) -> AsyncIterator[AnswerText]:
        import asyncio  # imported here, so that programs without an event loop do not pay for it

        self._loop, self._arrived = asyncio.get_running_loop(), asyncio.Event()
        self._begun_s = time.monotonic()
        try:
            for sequence in self._sequences:
                self._driver.drive(sequence, self._wake)
            while not self._is_over:
                if not self._has_news():
                    await self._arrived.wait()
                self._arrived.clear()
                for piece in self._news():
                    yield piece
        finally:
            self.stop()
            self._end()
