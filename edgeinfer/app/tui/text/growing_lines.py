"""An answer as lines of cells, while it grows: what is settled is drawn once.

In: pieces of text. Out: strips for a `Drawer`. However the text was cut, its lines at the end are those of the whole.
An open code fence grows by lines, each coloured by itself until the fence is closed.
"""

from __future__ import annotations

from textual.strip import Strip

from edgeinfer.app.tui.text.blocks import Block, GrowingBlocks
from edgeinfer.app.tui.text.drawing import Drawer
from edgeinfer.app.tui.text.fences import Opening

BLANK = Strip.blank(0)


class GrowingLines:
    """Text in, lines out. `finish` once nothing more comes."""

    def __init__(self) -> None:
        self._blocks = GrowingBlocks()
        self._drawer: Drawer | None = None
        self._drawn: list[Strip] = []
        self._n_drawn = 0
        self._fence: Opening | None = None
        self._fence_drawn: list[Strip] = []
        self._n_fence_lines = 0

    def push(self, text: str) -> None:
        """More text, harmless already."""
        self._blocks.push(text)

    def finish(self) -> None:
        """The text is over."""
        self._blocks.finish()

    def lines(self, drawer: Drawer) -> list[Strip]:
        """The text as it is, drawn."""
        if drawer is not self._drawer:
            self._drawer, self._drawn, self._n_drawn = drawer, [], 0
            self._fence = None
        for block in self._blocks.since(self._n_drawn):
            self._drawn += _apart(self._drawn, drawer.block(block))
        self._n_drawn = self._blocks.n_settled
        return [*self._drawn, *_apart(self._drawn, self._unsettled(drawer))]

    def _unsettled(self, drawer: Drawer) -> list[Strip]:
        """What may still change."""
        fence = self._blocks.open_fence
        if fence is None:
            self._fence = None
            tail = self._blocks.tail
            return drawer.block(Block(tail.rstrip("\n"))) if tail.strip() else []
        opening, lines, partial = fence
        if opening is not self._fence:
            self._fence, self._fence_drawn, self._n_fence_lines = opening, [], 0
        for line in lines[self._n_fence_lines :]:
            self._fence_drawn += drawer.code_line(line, opening.language)
        self._n_fence_lines = len(lines)
        return [*self._fence_drawn, *(drawer.plain(partial) if partial.strip() else [])]


def _apart(before: list[Strip], lines: list[Strip]) -> list[Strip]:
    """Lines with an empty one between them and those before."""
    return [BLANK, *lines] if before and lines else lines
