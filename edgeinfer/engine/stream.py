"""A stream of text: what `chat` and `complete` return.

In: a `Generation`. Out: its pieces, through a plain iterator (in the caller's thread) or an asynchronous one (in a
worker thread, one step at a time). Starts no event loop and no work before it is asked for a piece.
"""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Iterator

from edgeinfer.engine.generate import Generation
from edgeinfer.engine.live import Live, Mark
from edgeinfer.engine.stats import Stats


class TextStream:
    """Iterate it (`for` or `async for`) to generate; `stop()` from any thread keeps what there is."""

    def __init__(self, generation: Generation) -> None:
        self._generation = generation
        self._pieces = generation.pieces()
        self._lock = threading.Lock()

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        with self._lock:
            return next(self._pieces)

    async def __aiter__(self) -> AsyncIterator[str]:
        import asyncio  # who has no event loop need not wait for it

        try:
            while (piece := await asyncio.to_thread(next, self, None)) is not None:
                yield piece
        finally:
            if self.stats is None:
                self.stop()
                asyncio.get_running_loop().run_in_executor(None, self.close)

    @property
    def text(self) -> str:
        """The text so far."""
        return self._generation.text

    @property
    def tokens(self) -> tuple[int, ...]:
        """The tokens so far, the end-of-generation token not among them."""
        return self._generation.tokens

    @property
    def marks(self) -> tuple[Mark, ...]:
        """Who drafted which part of the text so far: runs of characters, in order; from any thread."""
        return self._generation.marks

    @property
    def live(self) -> Live:
        """How far it is, while it is made; from any thread."""
        return self._generation.live

    @property
    def stats(self) -> Stats | None:
        """The numbers of the answer; None until it is done."""
        return self._generation.stats

    def read(self) -> str:
        """Generate to the end; the whole text."""
        for _ in self:
            pass
        return self.text

    def stop(self) -> None:
        """End the answer within one step; from any thread. What was generated stays in `text`."""
        self._generation.stop()

    def close(self) -> None:
        """Stop, wait for the running step to end, and let go of the session."""
        self.stop()
        with self._lock:
            self._pieces.close()
