"""Markdown cut into its top-level blocks, whole or while it grows.

In: text, whole or in pieces. Out: `Block`s, each of which can be drawn by itself. Settled ones never change again: only
the last is looked at when more text comes, and an open code fence grows by lines without being parsed. Link definitions
are text here, so that no block depends on another.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from edgeinfer.app.tui.text.fences import Opening, opening_of

if TYPE_CHECKING:
    from markdown_it import MarkdownIt


@cache
def parser() -> MarkdownIt:
    """What texts are parsed with: CommonMark with tables; HTML, images and link definitions stay text."""
    from markdown_it import MarkdownIt  # takes a while, and not before there is text

    return MarkdownIt("commonmark", {"html": False}).enable(["table", "strikethrough"]).disable(["reference", "image"])


@dataclass(frozen=True, slots=True)
class Block:
    """A paragraph, list, table, heading, … (`opening` None), or a code fence and the lines in it."""

    source: str
    opening: Opening | None = None
    is_closed: bool = True

    @property
    def code(self) -> str:
        """What stands in the fence."""
        return self.source


def blocks_of(text: str) -> tuple[Block, ...]:
    """The blocks of a whole text."""
    growing = GrowingBlocks()
    growing.push(text)
    growing.finish()
    return growing.settled


class GrowingBlocks:
    """The blocks of a text that grows at its end."""

    def __init__(self) -> None:
        self._settled: list[Block] = []
        self._tail: list[str] = []  # complete lines that are not settled
        self._line = ""  # the line that is not complete
        self._fence: Opening | None = None
        self._fence_lines: list[str] = []

    @property
    def settled(self) -> tuple[Block, ...]:
        """Blocks that will not change."""
        return tuple(self._settled)

    @property
    def n_settled(self) -> int:
        return len(self._settled)

    @property
    def open_fence(self) -> tuple[Opening, Sequence[str], str] | None:
        """The fence that the text ends in: its complete lines, and what there is of the next one."""
        return None if self._fence is None else (self._fence, self._fence_lines, self._fence.content(self._line))

    @property
    def tail(self) -> str:
        """Text after the settled blocks, where it is not in a fence."""
        return "" if self._fence is not None else "".join(f"{line}\n" for line in self._tail) + self._line

    def since(self, n_settled: int) -> list[Block]:
        """Blocks that were settled after the first so many."""
        return self._settled[n_settled:]

    def push(self, text: str) -> None:
        """More text."""
        *lines, self._line = (self._line + text).split("\n")
        for line in lines:
            self._take(line)
        if lines and self._fence is None:
            self._settle()

    def finish(self) -> None:
        """The text is over: all of it is settled."""
        if self._fence is not None:
            if self._line and not self._fence.is_closed_by(self._line):
                self._fence_lines.append(self._fence.content(self._line))
            self._close_fence(is_closed=bool(self._line) and self._fence.is_closed_by(self._line))
        else:
            if self._line:
                self._take(self._line)
            if self._fence is not None:
                self._close_fence(is_closed=False)
            self._settled += [Block(source) for source in split(self._tail)]
        self._tail, self._line = [], ""

    def _take(self, line: str) -> None:
        """A line is complete."""
        if self._fence is not None:
            if self._fence.is_closed_by(line):
                self._close_fence(is_closed=True)
            else:
                self._fence_lines.append(self._fence.content(line))
            return
        if (opening := opening_of(line)) is not None and self._stands_alone(line):
            self._settled += [Block(source) for source in split(self._tail)]
            self._tail = []
            self._fence, self._fence_lines = opening, []
            return
        self._tail.append(line)

    def _stands_alone(self, line: str) -> bool:
        """Whether a fence that begins here belongs to no list or quote before it."""
        if not any(self._tail):
            return True
        tokens = parser().parse("\n".join([*self._tail, line]) + "\n")
        last = [token for token in tokens if token.level == 0 and token.map][-1]
        return last.type == "fence" and last.map is not None and last.map[0] == len(self._tail)

    def _close_fence(self, *, is_closed: bool) -> None:
        assert self._fence is not None
        self._settled.append(Block("".join(f"{line}\n" for line in self._fence_lines), self._fence, is_closed))
        self._fence, self._fence_lines = None, []

    def _settle(self) -> None:
        """Settle what is followed by another block."""
        if len(self._tail) < 2:
            return
        starts = _starts(self._tail)
        if len(starts) < 2:
            return
        self._settled += [Block(source) for source in split(self._tail[: starts[-1]])]
        self._tail = self._tail[starts[-1] :]


def _starts(lines: Sequence[str]) -> list[int]:
    """Lines at which top-level blocks begin."""
    tokens = parser().parse("\n".join(lines) + "\n")
    return [token.map[0] for token in tokens if token.level == 0 and token.nesting >= 0 and token.map]


def split(lines: Sequence[str]) -> list[str]:
    """Lines as the sources of their blocks, without the empty lines between them."""
    starts = _starts(lines)
    if not starts:
        return []
    found = ["\n".join(lines[begin:end]).rstrip() for begin, end in zip(starts, [*starts[1:], len(lines)], strict=True)]
    return [source for source in found if source]
