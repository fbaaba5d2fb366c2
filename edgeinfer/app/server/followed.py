"""A stream, and how much of its prompt was read, told between its texts: llama-server's `return_progress`.

In: a function that creates a stream; the engine's reports, from its own thread. Out: texts, and records of progress,
in the server's loop. Knows no HTTP.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from edgeinfer.app.server.objects import Record
from edgeinfer.steps import READING_MEDIA, Progress, no_progress

if TYPE_CHECKING:
    from edgeinfer.engine.scheduler.stream import TextStream


class FollowedStream:
    """A stream whose progress is told if `loop` is given."""

    def __init__(
        self,
        begin: Callable[..., TextStream],
        loop: asyncio.AbstractEventLoop | None,
        go_on: Progress = no_progress,
    ) -> None:
        """`begin`: creates the stream, with the option `progress`. `go_on`: raises to end that, not the answer."""
        self._loop, self._begun_s, self._go_on = loop, time.monotonic(), go_on
        self._told: list[Record] = []
        self._arrived: asyncio.Queue[str | BaseException | None] = asyncio.Queue()
        self._has_begun = False
        self.stream = begin(progress=self._report)
        self._has_begun = True

    def take_progress(self) -> list[Record]:
        """The progress that was not taken yet."""
        told, self._told = self._told, []
        return told

    def chunks(self, every_s: float) -> AsyncIterator[str]:
        """The texts as they arrive, and "" where there is progress to take."""
        return self.beside(self.stream.chunks(every_s))

    def beside(self, texts: AsyncIterator[str]) -> AsyncIterator[str]:
        """These texts, made of the stream's, and "" where there is progress to take."""
        return texts if self._loop is None else self._both(texts)

    def stop(self) -> None:
        """End the answer."""
        self.stream.stop()

    async def _both(self, texts: AsyncIterator[str]) -> AsyncIterator[str]:
        reading = asyncio.create_task(self._follow(texts))
        try:
            while (arrived := await self._arrived.get()) is not None:
                if isinstance(arrived, BaseException):
                    raise arrived
                yield arrived
        finally:
            reading.cancel()
            with suppress(asyncio.CancelledError):
                await reading

    async def _follow(self, texts: AsyncIterator[str]) -> None:
        try:
            async for text in texts:
                self._arrived.put_nowait(text)
            self._arrived.put_nowait(None)
        except Exception as reason:
            self._arrived.put_nowait(reason)

    def _report(self, what: str, done: int, total: int) -> None:
        """Called by the engine: while the stream is created, then in the engine's own thread."""
        if not self._has_begun:
            self._go_on(what, done, total)
        elif self._loop is not None and what not in READING_MEDIA:
            self._tell_later(self._loop, done, total)

    def _tell_later(self, loop: asyncio.AbstractEventLoop, done: int, total: int) -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody listens
            loop.call_soon_threadsafe(self._tell, done, total, 1e3 * (time.monotonic() - self._begun_s))

    def _tell(self, done: int, total: int, time_ms: float) -> None:
        n_prompt = self.stream.live.n_prompt
        n_cached = n_prompt - total
        record = {"total": n_prompt, "cache": n_cached, "processed": n_cached + done, "time_ms": time_ms}
        self._told.append(record)
        self._arrived.put_nowait("")
