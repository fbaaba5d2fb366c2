"""Several answers to one request, written side by side: what `LLM.several` returns.

In: sequences of the scheduler, a picking. Out: the text of all lanes as it arrives, and in the end the one that is
kept. Lanes share the pages of their prompt and run in the same passes; each is exactly the answer that the same request
has alone with its seed. With a plain iterator the caller's thread generates them, with an asynchronous one the engine's
thread does.
"""

from __future__ import annotations

import threading
import time
from collections.abc import AsyncIterator, Generator, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from edgeinfer.engine.scheduler.output import Waiter
from edgeinfer.engine.scheduler.sequence import ScheduledSequence
from edgeinfer.engine.scheduler.step_driver import StepDriver
from edgeinfer.engine.scheduler.stream import TextStream
from edgeinfer.engine.several.picking import Choice, Judge, Picking, chosen_of

if TYPE_CHECKING:
    import asyncio


@dataclass(frozen=True, slots=True)
class LaneText:
    """A piece of text of one of several answers. `number`: its place among them, from 0 on."""

    number: int
    text: str


class Several:
    """Several answers to one request. Iterate over it once, with `for` or `async for`, to generate them.

    `lanes` are the answers as streams, to look at and not to iterate over; `choice` says which one is kept once that is
    decided, `chosen` is that lane.
    """

    def __init__(self, sequences: Sequence[ScheduledSequence], driver: StepDriver, picking: Picking) -> None:
        """Generates nothing before the first piece is requested."""
        self._sequences, self._driver = sequences, driver
        self.lanes = tuple(TextStream(sequence, driver) for sequence in sequences)
        self._waiter = Waiter()
        self._judge = Judge(self.lanes, picking, self._wake)
        self._told_over: set[int] = set()
        self._begun_s = 0.0
        self.seconds = 0.0
        """From the first piece requested to the end of all lanes."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._arrived: asyncio.Event | None = None
        self._pieces = self._generated()
        self._lock = threading.Lock()

    def __iter__(self) -> Iterator[LaneText]:
        return self

    def __next__(self) -> LaneText:
        with self._lock:
            return next(self._pieces)

    @property
    def choice(self) -> Choice | None:
        """The answer that is kept, and why; None while that is open."""
        return self._judge.choice

    @property
    def chosen(self) -> TextStream | None:
        """The lane that is kept; None while that is open."""
        choice = self.choice
        return None if choice is None else self.lanes[choice.number]

    @property
    def n_generated(self) -> int:
        """Tokens of all lanes so far."""
        return sum(lane.live.n_generated for lane in self.lanes)

    def read(self) -> str:
        """Generate to the end and return the text of the answer that is kept. Raises EdgeInferError if it was stopped.

        As `chosen.text`: with thoughts, if there are any.
        """
        for _ in self:
            pass
        return self.lanes[chosen_of(self._judge).number].text

    def stop(self) -> None:
        """End all lanes within one step; may be called from any thread."""
        for lane in self.lanes:
            lane.stop()

    def close(self) -> None:
        """Stop, and release everything."""
        self.stop()
        with self._lock:
            self._pieces.close()
        for sequence in self._sequences:
            if sequence.has_entered and not sequence.is_over:
                self._driver.scheduler.leave(sequence)

    def __enter__(self) -> Several:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _wake(self) -> None:
        """Called by the scheduler's thread, and by that of checks."""
        self._waiter.wake()
        if self._loop is not None and self._arrived is not None and not self._arrived.is_set():
            with suppress(RuntimeError):  # the loop is closed: nothing waits any more
                self._loop.call_soon_threadsafe(self._arrived.set)

    def _has_news(self) -> bool:
        """Whether there is text, or a lane is over, or a check is done."""
        fresh = (each.output.n_pieces or (each.is_over and n not in self._told_over) for n, each in self._numbered)
        return any(fresh) or self._judge.n_unnoted_checks > 0

    @property
    def _numbered(self) -> Iterator[tuple[int, ScheduledSequence]]:
        return enumerate(self._sequences)

    @property
    def _is_over(self) -> bool:
        """Whether nothing more comes: all lanes are over, and what was decided waits for no check."""
        over = len(self._told_over) == len(self._sequences)
        return over and (self.choice is not None or not self._judge.awaits_checks)

    def _news(self) -> list[LaneText]:
        """Take the text that has come, and judge. Raises the error that ended a lane."""
        found = [LaneText(n, text) for n, each in self._numbered if (text := "".join(each.output.take_all()))]
        for number, sequence in self._numbered:
            if sequence.is_over and not sequence.output.n_pieces:
                if sequence.error is not None:
                    raise sequence.error
                self._told_over.add(number)
        self.seconds = time.monotonic() - self._begun_s
        self._judge.look(self.seconds)
        return found

    def _begin(self) -> None:
        self._begun_s = time.monotonic()

    def _end(self) -> None:
        """Leave the scheduler without waiting: it may run in a finalizer at any point."""
        for sequence in self._sequences:
            self._driver.scheduler.abandon(sequence)
        self._judge.close()

    def _generated(self) -> Generator[LaneText, None, None]:
        """The text of all lanes, generated in the caller's thread."""
        self._begin()
        try:
            for sequence in self._sequences:
                sequence.is_driven, sequence.notify = True, self._waiter.wake
                self._driver.scheduler.enter(sequence)
            while not self._is_over:
                self._driver.wait_for(self._waiter, self._has_news)
                yield from self._news()
        finally:
            self._end()

    async def __aiter__(self) -> AsyncIterator[LaneText]:
        import asyncio  # imported here, so that programs without an event loop do not pay for it

        self._loop, self._arrived = asyncio.get_running_loop(), asyncio.Event()
        self._begin()
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
