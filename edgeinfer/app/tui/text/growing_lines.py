"""Draws an answer as lines of cells while it grows; settled blocks are drawn only once.

In: pieces of text. Out: strips of a `Drawer`, and how long to wait between two draws. The final lines do not depend on
how the text was cut into pieces. An open code fence grows by lines, each highlighted separately until the fence is
closed. Reads no clock and sets no timer.
"""

from __future__ import annotations

import re
from dataclasses import replace

from textual.strip import Strip

from edgeinfer.app.tui.text.drawing import Drawer, Palette
from edgeinfer.app.tui.text.markdown import Block, FenceStart, GrowingBlocks

LEAST_S = 0.1
SHARE = 1 / 50
"""Maximum share of time spent on drawing."""
MOST_S = 0.6
BLANK = Strip.blank(0)
LONG_CHARACTERS, LONG_LINES = 1500, 24
STRUCTURE = re.compile(r"\s|[-*+>#|](\s|$)|\d+[.)]\s|\|")
"""Matches the beginning of a block that is not a paragraph."""
GROWTH = 1.25
"""A long tail is redrawn as Markdown each time it has grown by this factor; meanwhile its newest part is plain text."""


class GrowingLines:
    """Draws a text that grows. Call `finish` when it is complete."""

    def __init__(self) -> None:
        self._blocks = GrowingBlocks()
        self._drawer: Drawer | None = None
        self._drawn: list[Strip] = []
        self._n_drawn = 0
        self._n_fences = 0  # in settled blocks that are drawn
        self._fence: FenceStart | None = None
        self._fence_drawn: list[Strip] = []
        self._n_fence_lines = 0
        self._tail_drawn: list[Strip] = []
        self._n_tail_characters = 0

    def push(self, text: str) -> None:
        """Append text that has already been neutralised."""
        self._blocks.push(text)

    def finish(self) -> None:
        """The text is complete."""
        self._blocks.finish()

    def forget(self) -> None:
        """Drop the drawn lines and keep the text."""
        self._drawer, self._drawn, self._n_drawn, self._n_fences = None, [], 0, 0
        self._fence, self._fence_drawn, self._n_tail_characters, self._tail_drawn = None, [], 0, []

    def lines(self, drawer: Drawer) -> list[Strip]:
        """Draw the text so far."""
        if drawer is not self._drawer:
            self.forget()
            self._drawer = drawer
        self._blocks.settle()
        for block in self._blocks.since(self._n_drawn):
            drawn = drawer.block(block, self._n_fences + 1)
            self._drawn += _apart(self._drawn, drawn, joins=block.joins)
            self._n_fences += block.n_fences
            self._n_tail_characters = 0
        self._n_drawn = self._blocks.n_settled
        tail = self._blocks.tail
        if tail is None:
            return [*self._drawn, *_apart(self._drawn, self._open_fence(drawer))]
        return [*self._drawn, *_apart(self._drawn, self._open_tail(drawer, tail), joins=tail.joins)]

    def _open_fence(self, drawer: Drawer) -> list[Strip]:
        """Draw the open code fence at the end of the text, each line once."""
        fence = self._blocks.open_fence
        if fence is None:
            self._fence = None
            return []
        opening, lines, partial = fence
        if opening is not self._fence:
            head = drawer.fence_head(opening.language, self._n_fences + 1)
            self._fence, self._fence_drawn, self._n_fence_lines = opening, [head], 0
        for line in lines[self._n_fence_lines :]:
            self._fence_drawn += drawer.code_line(line, opening.language)
        self._n_fence_lines = len(lines)
        return [*self._fence_drawn, *(drawer.plain(partial) if partial.strip() else [])]

    def _open_tail(self, drawer: Drawer, tail: Block) -> list[Strip]:
        """Draw the tail, which may still change; the longer it is, the more rarely it is redrawn."""
        source = tail.source
        n_complete = source.rfind("\n") + 1
        if not n_complete or (len(source) < LONG_CHARACTERS and source.count("\n") < LONG_LINES):
            self._n_tail_characters = 0
            return drawer.block(replace(tail, source=source.rstrip("\n")), self._n_fences + 1)
        if not self._n_tail_characters or n_complete >= GROWTH * self._n_tail_characters:
            complete = replace(tail, source=source[:n_complete].rstrip("\n"))
            self._tail_drawn = drawer.block(complete, self._n_fences + 1)
            self._n_tail_characters = n_complete
        rest = source[self._n_tail_characters :].rstrip("\n")
        return [*self._tail_drawn, *(_rest(drawer, tail, rest) if rest else [])]


class GrowingPlain:
    """Draws a growing text without formatting: complete lines once, the last line every time."""

    def __init__(self) -> None:
        self._drawer: Drawer | None = None
        self._drawn: list[Strip] = []
        self._done = ""

    def lines(self, text: str, drawer: Drawer, style: str = "") -> list[Strip]:
        """Draw the text so far."""
        if drawer is not self._drawer or not text.startswith(self._done):
            self._drawer, self._drawn, self._done = drawer, [], ""
        complete, end, rest = text[len(self._done) :].rpartition("\n")
        if end:
            for line in complete.split("\n"):
                self._drawn += drawer.plain(line, style) if line.strip() else [BLANK]
            self._done = text[: len(text) - len(rest)]
        return [*self._drawn, *(drawer.plain(rest, style) if rest else [])]


def _rest(drawer: Drawer, tail: Block, rest: str) -> list[Strip]:
    """Draw the text after the part of a long tail drawn as Markdown: a short paragraph as Markdown too, else plain."""
    is_paragraph = tail.number is None and not STRUCTURE.match(tail.source) and not STRUCTURE.match(rest)
    if not is_paragraph or len(rest) >= LONG_CHARACTERS:
        return drawer.plain(rest)
    return drawer.block(replace(tail, source=rest))


def _apart(before: list[Strip], lines: list[Strip], *, joins: bool = False) -> list[Strip]:
    """Put a blank line before these lines, unless they continue the block before."""
    return [BLANK, *lines] if before and lines and not joins else lines


SOME = "Some **words** of `text`:\n\n- an item\n\n```python\ndef code(x: int) -> int:\n    return x + 1\n```\n"


def prepare() -> None:
    """Import and warm up the drawing code."""
    lines = GrowingLines()
    lines.push(SOME)
    lines.finish()
    lines.lines(Drawer(40, Palette()))


def pause_s(cost_s: float) -> float:
    """Seconds between two draws, if the last one and the work around it took `cost_s` of CPU time."""
    return min(MOST_S, max(LEAST_S, cost_s / SHARE))
