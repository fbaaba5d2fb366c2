"""An answer by its outline: the model writes an outline, then all of its points side by side (Skeleton-of-Thought).

In: what begins the outline, the parts, and an ordinary answer. Out: the text in reading order, the first point as it is
written, later ones once those before them are complete. Parts do not see one another: each is exactly what its own
prompt gives alone. Without an outline that can be used there is one ordinary answer, and the reason is told. Source:
Ning et al., arXiv 2307.15337.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Generator
from dataclasses import dataclass

from edgeinfer.engine.scheduler.stream import TextStream
from edgeinfer.engine.several.mapping import Mapped, failures_text
from edgeinfer.engine.several.outlines import FIRST, NoOutline, Outline, is_lost, point_start, read_outline
from edgeinfer.engine.several.reading_order import ReadingOrder
from edgeinfer.engine.several.suiting import Suiting
from edgeinfer.engine.several.taken_pieces import TakenPieces
from edgeinfer.errors import EdgeInferError

BETWEEN_PARTS = "\n"
LABEL = "its parts were written side by side and do not see one another"


@dataclass(frozen=True, slots=True)
class OutlineSteps:
    """What begins each step. `outline` and `parts` raise EdgeInferError if they cannot be asked for."""

    outline: Callable[[], TextStream]
    parts: Callable[[Outline], Mapped]
    ordinary: Callable[[], TextStream]


class Outlined(TakenPieces[str]):
    """An answer by its outline. Iterate over it once, with `for` or `async for`, to write it: pieces of its text.

    `outline`: the points, once they are known. `fallback`: why there is one ordinary answer instead; "" if there is
    none. `stop()` may be called from any thread: the text ends with the part that is being read; what others have by
    then is in `parts`.
    """

    def __init__(self, steps: OutlineSteps, suiting: Suiting) -> None:
        """`suiting`: whether an outline is asked for, and why. Writes nothing before the first piece is requested."""
        self._steps = steps
        self.suiting: Suiting = suiting
        self.fallback: str = "" if suiting.suits else suiting.reason
        self.outline: Outline | None = None
        self.outline_stream: TextStream | None = None
        """The outline as it is written, to look at; None before, and if none is asked for."""
        self.ordinary: TextStream | None = None
        """The ordinary answer, to look at; None if there is none."""
        self.mapped: Mapped | None = None
        """The parts, to look at; None before, and if there are none."""
        self.text: str = ""
        """The text so far, in reading order; of an ordinary answer with thoughts, if there are any."""
        self.seconds: float = 0.0
        """From the first piece requested to the end."""
        self.first_s: float | None = None
        """Seconds until the first piece; None before."""
        self._began_s, self._is_stopped = 0.0, False
        super().__init__()

    @property
    def streams(self) -> tuple[TextStream, ...]:
        """Everything that was written or is being written: the outline, the parts, the ordinary answer."""
        parts = () if self.mapped is None else self.mapped.answers
        return tuple(each for each in (self.outline_stream, *parts, self.ordinary) if each is not None)

    @property
    def parts(self) -> tuple[TextStream, ...]:
        """The texts of the points, without their beginnings, to look at; () if there are none."""
        return () if self.mapped is None else self.mapped.answers

    @property
    def n_generated(self) -> int:
        """Tokens so far, those of the outline too."""
        return sum(stream.n_generated for stream in self.streams)

    def read(self) -> str:
        """Write to the end and return the whole text."""
        for _ in self:
            pass
        return self.text

    def stop(self) -> None:
        """End within one step; may be called from any thread. The text so far stays."""
        self._is_stopped = True
        for stream in self.streams:
            stream.stop()
        if self.mapped is not None:
            self.mapped.stop()

    def close(self) -> None:
        """Stop, and release everything."""
        self.stop()
        with self._lock:
            self._pieces.close()
        if self.mapped is not None:
            self.mapped.close()
        for stream in (self.outline_stream, self.ordinary):
            if stream is not None:
                stream.close()

    def _generated(self) -> Generator[str, None, None]:
        self._began_s = time.monotonic()
        try:
            if (outline := self._begin_outline()) is not None:
                for _ in outline:
                    self._look_at_outline(outline)
            if (mapped := self._begin_parts()) is not None:
                order = self._order(mapped)
                yield from self._noted(order.read())
                for _ in mapped:
                    yield from self._noted(order.read())
                yield from self._noted(order.read())
                self._check(mapped)
            elif (ordinary := self._begin_ordinary()) is not None:
                for piece in ordinary:
                    yield from self._noted(piece)
        finally:
            self.seconds = time.monotonic() - self._began_s
            self.stop()

    async def __aiter__(self) -> AsyncIterator[str]:
        self._began_s = time.monotonic()
        try:
            if (outline := self._begin_outline()) is not None:
                async for _ in outline:
                    self._look_at_outline(outline)
            if (mapped := self._begin_parts()) is not None:
                order = self._order(mapped)
                for text in self._noted(order.read()):
                    yield text
                async for _ in mapped:
                    for text in self._noted(order.read()):
                        yield text
                for text in self._noted(order.read()):
                    yield text
                self._check(mapped)
            elif (ordinary := self._begin_ordinary()) is not None:
                async for piece in ordinary:
                    for text in self._noted(piece):
                        yield text
        finally:
            self.seconds = time.monotonic() - self._began_s
            self.stop()

    def _noted(self, text: str) -> tuple[str, ...]:
        """A piece of the text, noted; () if it is empty."""
        self.seconds = time.monotonic() - self._began_s
        if not text:
            return ()
        self.first_s = self.seconds if self.first_s is None else self.first_s
        self.text += text
        return (text,)

    def _begin_outline(self) -> TextStream | None:
        if self.fallback or self._is_stopped:
            return None
        try:
            self.outline_stream = self._steps.outline()
        except EdgeInferError as reason:
            self.fallback = f"its outline cannot be asked for: {reason}"
            return None
        self._stop_again()
        return self.outline_stream

    def _look_at_outline(self, outline: TextStream) -> None:
        """End an outline that is none any more."""
        if is_lost(FIRST + outline.text):
            outline.stop()

    def _begin_parts(self) -> Mapped | None:
        """Begin the parts; None, with the reason noted, if there is no outline for them."""
        if self.outline_stream is None or self._is_stopped:
            return None
        stats = self.outline_stream.stats
        is_whole = stats is not None and stats.finish_reason == "stop"
        outline = read_outline(FIRST + self.outline_stream.text, is_whole=is_whole)
        if isinstance(outline, NoOutline):
            self.fallback = outline.reason
            return None
        try:
            mapped = self._steps.parts(outline)
        except EdgeInferError as reason:
            self.fallback = f"its parts cannot be asked for: {reason}"
            return None
        self.outline, self.mapped = outline, mapped
        self._stop_again()
        return mapped

    def _begin_ordinary(self) -> TextStream | None:
        if self._is_stopped:
            return None
        self.ordinary = self._steps.ordinary()
        self._stop_again()
        return self.ordinary

    def _stop_again(self) -> None:
        """Stop what has begun meanwhile, if another thread has stopped it all."""
        if self._is_stopped:
            self.stop()

    def _order(self, mapped: Mapped) -> ReadingOrder:
        """Reads the parts in order, each after its point."""
        assert self.outline is not None
        heads = [point_start(self.outline, number) for number in range(1, len(self.outline.points) + 1)]

        def text_of(number: int) -> str:
            stream = mapped.stream(number)
            return "" if stream is None else stream.text

        def is_over(number: int) -> bool:
            stats = mapped.stats_of(number)
            cut = stats is None or stats.finish_reason == "cancelled"
            return mapped.is_over(number) and not (self._is_stopped and cut)  # what is stopped goes no further

        return ReadingOrder(heads, BETWEEN_PARTS, text_of, is_over)

    def _check(self, mapped: Mapped) -> None:
        """Raise an error if parts are missing that nobody stopped."""
        if mapped.errors:
            raise EdgeInferError(failures_text(mapped.errors, len(mapped.items)))
