"""A stream of text: what `chat` and `complete` return.

In: a sequence that the scheduler drives. Out: its text in pieces, through a plain iterator, whose caller's thread makes
them, or an asynchronous one, for which the engine's thread does. Starts no event loop and no work before it is asked
for a piece.
"""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

from edgeinfer.engine.scheduler.sequence import ScheduledSequence
from edgeinfer.engine.scheduler.stats import DraftSpan, RequestProgress, Stats
from edgeinfer.engine.scheduler.step_driver import StepDriver
from edgeinfer.engine.scheduler.token_choice import TokenLogprobs
from edgeinfer.models.text.tools import ToolCall, ToolReader

if TYPE_CHECKING:
    import asyncio


class TextStream:
    """The text of one answer, piece by piece: iterate it once, with `for` or `async for`, to have it generated.

    What it tells besides (`text`, `tokens`, `live`, …) is as far as the text was taken; from any thread, as `stop()`,
    which keeps what there is.
    """

    def __init__(self, sequence: ScheduledSequence, driver: StepDriver) -> None:
        """Nothing is generated before the first piece is asked for. `driver`: makes steps for all on its scheduler."""
        self._sequence, self._driver = sequence, driver
        self._pieces = driver.pieces(sequence)
        self._lock = threading.Lock()

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        with self._lock:
            return next(self._pieces)

    async def __aiter__(self) -> AsyncIterator[str]:
        async for pieces in self._arriving(0.0):
            for piece in pieces:
                yield piece

    async def chunks(self, every_s: float = 0.02) -> AsyncIterator[str]:
        """The text as it arrives, in larger parts: one at most in so many seconds, the first and last at once.

        Whatever is done with each part is done less often, which leaves the processor to the model.
        """
        async for pieces in self._arriving(every_s):
            yield "".join(pieces)

    async def _arriving(self, every_s: float) -> AsyncIterator[list[str]]:
        """All that has arrived, whenever something has; not again within `every_s`, unless it is the end."""
        import asyncio  # who has no event loop need not wait for it

        loop, arrived, ended = asyncio.get_running_loop(), asyncio.Event(), asyncio.Event()

        def notify() -> None:
            _set(loop, arrived)
            if self.stats is not None:
                _set(loop, ended)

        sequence = self._sequence
        self._driver.drive(sequence, notify)
        try:
            while not (sequence.is_over and not sequence.output.n_pieces):
                pieces = sequence.output.take_all()
                if pieces:
                    yield pieces
                    if every_s and not sequence.is_over:
                        with suppress(TimeoutError):
                            async with asyncio.timeout(every_s):
                                await ended.wait()
                elif not sequence.is_over:
                    await arrived.wait()
                    arrived.clear()
            if sequence.error is not None:
                raise sequence.error
        finally:
            self.stop()

    @property
    def text(self) -> str:
        """The text so far."""
        return self._sequence.output.text(self._sequence.n_seen)

    @property
    def tokens(self) -> tuple[int, ...]:
        """The tokens so far, the end-of-generation token not among them."""
        return self._sequence.tokens[: self._sequence.n_seen]

    @property
    def reader(self) -> ToolReader | None:
        """Tells calls from content in the text, piece by piece; None where the request has no tools."""
        tools = self._sequence.request.tools
        return None if tools is None else tools.reader()

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        """The calls in the text so far that are whole."""
        return self._read_calls()[1]

    @property
    def content(self) -> str:
        """The text so far without its calls."""
        return self._read_calls()[0]

    def _read_calls(self) -> tuple[str, tuple[ToolCall, ...]]:
        reader = self.reader
        if reader is None:
            return self.text, ()
        content = reader.push(self.text) + (reader.finish() if self.stats is not None else "")
        return content, tuple(reader.calls)

    @property
    def logprobs(self) -> tuple[TokenLogprobs, ...]:
        """Of each of these tokens, if they were asked for: its logarithmic probability, and likely others'."""
        return self._sequence.logprobs[: self._sequence.n_seen]

    @property
    def marks(self) -> tuple[DraftSpan, ...]:
        """Which part of the text so far came from which draft source: runs of characters, in order."""
        return self._sequence.spans(self._sequence.n_seen)

    @property
    def live(self) -> RequestProgress:
        """How far it is, while it is made; from any thread."""
        return self._sequence.live

    @property
    def stats(self) -> Stats | None:
        """The numbers of the answer; None until it is done."""
        return self._sequence.stats

    def read(self) -> str:
        """Generate to the end; the whole text."""
        for _ in self:
            pass
        return self.text

    def stop(self) -> None:
        """End the answer within one step; from any thread. What was generated stays in `text`."""
        self._sequence.stop()

    def close(self) -> None:
        """Stop, wait for the running step to end, and let go of the session."""
        self.stop()
        with self._lock:
            self._pieces.close()
        if self._sequence.has_entered and not self._sequence.is_over:
            self._driver.scheduler.leave(self._sequence)


def _set(loop: asyncio.AbstractEventLoop, event: asyncio.Event) -> None:
    """Let an event loop go on, from another thread."""
    if not event.is_set():
        with suppress(RuntimeError):  # it is closed: nothing waits any more
            loop.call_soon_threadsafe(event.set)
