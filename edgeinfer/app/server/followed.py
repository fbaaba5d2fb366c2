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


class PromptProgress:
    """What the engine reports while it reads a prompt. The request refers to it, so it does not refer to the stream."""

    def __init__(self, loop: asyncio.AbstractEventLoop | None, go_on: Progress) -> None:
        self.loop = loop
        self.arrived: asyncio.Queue[str | BaseException | None] = asyncio.Queue()
        self.n_prompt: int | None = None
        """Tokens of the prompt; None while the stream is being created."""
        self._begun_s, self._go_on = time.monotonic(), go_on
        self._told: list[Record] = []

    def take(self) -> list[Record]:
        """The records that were not taken yet."""
        told, self._told = self._told, []
        return told

    def report(self, what: str, done: int, total: int) -> None:
        """Called by the engine: while the stream is created, then in the engine's own thread."""
        if self.n_prompt is None:
            self._go_on(what, done, total)
        elif self.loop is not None and what not in READING_MEDIA:
            time_ms = 1e3 * (time.monotonic() - self._begun_s)
            with suppress(RuntimeError):  # the loop is closed: nobody listens
                self.loop.call_soon_threadsafe(self._tell, self.n_prompt, done, total, time_ms)

    def _tell(self, n_prompt: int, done: int, total: int, time_ms: float) -> None:
        n_cached = n_prompt - total
        self._told.append({"total": n_prompt, "cache": n_cached, "processed": n_cached + done, "time_ms": time_ms})
        self.arrived.put_nowait("")


class FollowedStream:
    """A stream whose progress is told if `loop` is given."""

    def __init__(
        self,
        begin: Callable[..., TextStream],
        loop: asyncio.AbstractEventLoop | None,
        go_on: Progress = no_progress,
    ) -> None:
        """`begin`: creates the stream, with the option `progress`. `go_on`: raises to end that, not the answer."""
        self._progress = PromptProgress(loop, go_on)
        self.stream = begin(progress=self._progress.report)
        self._progress.n_prompt = 0 if loop is None else self.stream.live.n_prompt

    def take_progress(self) -> list[Record]:
        """The progress that was not taken yet."""
        return self._progress.take()

    def chunks(self, every_s: float) -> AsyncIterator[str]:
        """The texts as they arrive, and "" where there is progress to take."""
        return self.beside(self.stream.chunks(every_s))

    def beside(self, texts: AsyncIterator[str]) -> AsyncIterator[str]:
        """These texts, made of the stream's, and "" where there is progress to take."""
        return texts if self._progress.loop is None else self._both(texts)

    def stop(self) -> None:
        """End the answer."""
        self.stream.stop()

    async def _both(self, texts: AsyncIterator[str]) -> AsyncIterator[str]:
        reading = asyncio.create_task(self._follow(texts))
        try:
            while (arrived := await self._progress.arrived.get()) is not None:
                if isinstance(arrived, BaseException):
                    raise arrived
                yield arrived
        finally:
            reading.cancel()
            with suppress(asyncio.CancelledError):
                await reading

    async def _follow(self, texts: AsyncIterator[str]) -> None:
        arrived = self._progress.arrived
        try:
            async for text in texts:
                arrived.put_nowait(text)
            arrived.put_nowait(None)
        except Exception as reason:
            arrived.put_nowait(reason)
