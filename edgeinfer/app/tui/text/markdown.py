"""Parses Markdown, whole or while it grows: its code fences, and the blocks that can be drawn one by one.

In: text, whole or in pieces. Out: tokens; `Fence`s, for copying and saving; top-level `Block`s, with lists split into
items. The dialect is CommonMark with tables and strikethrough. HTML, images and link definitions stay text, so that
nothing of an answer is lost and no block depends on another. Knows nothing of how blocks are drawn.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.token import Token

GROWTH = 1.25
"""A tail without an apparent new block is reparsed after growing by this factor, so that long tables stay cheap."""
LEAST_ITEM_INDENT = 2
"""Minimum indent of a list item's continuation: a fence with less indent is outside the item."""
_ITEM = re.compile(r" {0,3}(?:[-*+]|\d{1,9}[.)]) {1,4}(?=\S)")
_MARKER = re.compile(r" {0,3}(?:[-*+]|\d{1,9}[.)])")
_MAY_BEGIN = re.compile(r"^\s*$|^ {0,3}(?:[-*+#]|\d{1,9}[.)])")
_OPENING = re.compile(r"^( {0,3})(`{3,}(?=[^`]*$)|~{3,})[ \t]*(.*?)[ \t]*$")
_AROUND = re.compile(r"^(?:[ \t>]|[-*+][ \t]|\d{1,9}[.)][ \t])*")
"""Markers of the quotes and lists around a line."""


@cache
def parser() -> MarkdownIt:
    """The parser for complete blocks and their inline contents."""
    from markdown_it import MarkdownIt  # slow import, deferred until there is text

    return MarkdownIt("commonmark", {"html": False}).enable(["table", "strikethrough"]).disable(["reference", "image"])


@cache
def block_parser() -> MarkdownIt:
    """A parser that finds blocks only and skips their inline contents."""
    from markdown_it import MarkdownIt

    return MarkdownIt("commonmark", {"html": False}).enable(["table"]).disable(["reference", "inline"])


@dataclass(frozen=True, slots=True)
class Fence:
    """A code fence: its contents, without the opening and closing lines.

    `begin_line` and `end_line`: the range of lines it occupies, end exclusive.
    """

    language: str
    text: str
    is_closed: bool
    begin_line: int
    end_line: int


@dataclass(frozen=True, slots=True)
class FenceStart:
    """The opening line of a fence: its indent, character, character count and language."""

    indent: int
    sign: str
    count: int
    language: str

    def is_closed_by(self, line: str) -> bool:
        """Whether a line closes the fence."""
        bare = line.rstrip(" \t").lstrip(" ")
        return len(line) - len(line.lstrip(" ")) <= 3 and len(bare) >= self.count and set(bare) == {self.sign}

    def content(self, line: str) -> str:
        """A line of the fence, without the indentation of the opening line."""
        n_spaces = len(line) - len(line.lstrip(" "))
        return line[min(self.indent, n_spaces) :]


def opening_of(line: str) -> FenceStart | None:
    """The fence that a line opens, or None."""
    found = _OPENING.match(line)
    if found is None:
        return None
    words = found[3].split()
    return FenceStart(len(found[1]), found[2][0], len(found[2]), words[0] if words else "")


def fences_of(text: str) -> tuple[Fence, ...]:
    """All fences of a text, including those in lists and quotes, parsed as they are drawn."""
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    lines = text.split("\n")
    found = []
    for token in block_parser().parse(text):
        if token.type != "fence" or token.map is None:
            continue
        begin, end = token.map
        words = token.info.split()
        is_closed = end - begin > 1 and _closes(lines[end - 1], token.markup)
        code = token.content if token.content.endswith("\n") or not token.content else token.content + "\n"
        found.append(Fence(words[0] if words else "", code, is_closed, begin, end))
    return tuple(found)


def _closes(line: str, markup: str) -> bool:
    """Whether a fence's last line is its closing line."""
    bare = _AROUND.sub("", line, count=1).rstrip(" \t")
    return len(bare) >= len(markup) and set(bare) == {markup[0]}


@dataclass(frozen=True, slots=True)
class Block:
    """A paragraph, table, heading, list item, … (`opening` None), or a code fence with its lines.

    `number`: of an item in a numbered list. `joins`: the block continues the list of the block before.
    """

    source: str
    opening: FenceStart | None = None
    is_closed: bool = True
    number: int | None = None
    joins: bool = False

    @property
    def n_fences(self) -> int:
        """The number of code fences in it, as `fences_of` counts them."""
        if self.opening is not None:
            return 1
        return len(fences_of(self.source)) if "```" in self.source or "~~~" in self.source else 0


@dataclass(frozen=True, slots=True)
class _Start:
    """Start of a block: its line, and its place in a list."""

    line: int
    number: int | None = None
    joins: bool = False


NOWHERE = _Start(0)


def blocks_of(text: str) -> tuple[Block, ...]:
    """Split a complete text into blocks."""
    growing = GrowingBlocks()
    growing.push(text)
    growing.finish()
    return growing.settled


class GrowingBlocks:
    """Splits a text that grows at its end."""

    def __init__(self) -> None:
        self._settled: list[Block] = []
        self._tail: list[str] = []  # complete lines that are not settled
        self._first = NOWHERE  # how the first block of the tail begins
        self._n_parsed = 0  # number of tail lines already parsed
        self._line = ""  # the incomplete last line
        self._fence: FenceStart | None = None
        self._fence_lines: list[str] = []
        self._item_indent: int | None = None  # indent of the last list item's contents in the tail, if known

    @property
    def settled(self) -> tuple[Block, ...]:
        """Blocks that will not change."""
        return tuple(self._settled)

    @property
    def n_settled(self) -> int:
        return len(self._settled)

    @property
    def open_fence(self) -> tuple[FenceStart, Sequence[str], str] | None:
        """The open code fence at the end of the text: its opening, complete lines, and the incomplete last line."""
        return None if self._fence is None else (self._fence, self._fence_lines, self._fence.content(self._line))

    @property
    def tail(self) -> Block | None:
        """The text after the settled blocks, or None if it is blank or in a fence."""
        source = "" if self._fence is not None else "".join(f"{line}\n" for line in self._tail) + self._line
        return Block(source, number=self._first.number, joins=self._first.joins) if source.strip() else None

    def since(self, n_settled: int) -> list[Block]:
        """The settled blocks after the first `n_settled`."""
        return self._settled[n_settled:]

    def push(self, text: str) -> None:
        """Append text."""
        *lines, self._line = (self._line + text).split("\n")
        for line in lines:
            self._take(line)

    def settle(self) -> None:
        """Settle all blocks of the tail but the last. If this is never called, `finish` settles everything at once."""
        if self._fence is not None or not self._may_settle():
            return
        self._n_parsed = len(self._tail)
        starts = _starts(self._tail, self._first)
        if len(starts) < 2:
            return
        last = starts[-1]
        self._settled += _cut(self._tail[: last.line], starts[:-1])
        self._tail, self._first = self._tail[last.line :], replace(last, line=0)
        self._n_parsed = len(self._tail)

    def finish(self) -> None:
        """The text is complete: settle all of it."""
        if self._fence is None and self._line:
            self._take(self._line)
            self._line = ""
        if self._fence is None:
            self._settle_tail()
        elif self._line and self._fence.is_closed_by(self._line):
            self._close_fence(is_closed=True)
        else:
            self._fence_lines += [self._fence.content(self._line)] if self._line else []
            self._close_fence(is_closed=False)
        self._line = ""

    def _take(self, line: str) -> None:
        """Process a complete line."""
        if self._fence is not None:
            if self._fence.is_closed_by(line):
                self._close_fence(is_closed=True)
            else:
                self._fence_lines.append(self._fence.content(line))
            return
        if self._item_indent is not None and line.strip() and _indent_of(line) < self._item_indent:
            self._item_indent = None
        if (opening := opening_of(line)) is not None and self._stands_alone(line):
            self._settle_tail()
            self._fence, self._fence_lines = opening, []
            return
        self._tail.append(line)

    def _stands_alone(self, line: str) -> bool:
        """Whether a fence opened by this line is at the top level, outside any list or quote before it."""
        if _indent_of(line) < LEAST_ITEM_INDENT or not any(self._tail):
            return True
        if self._item_indent is not None:
            return False
        self.settle()
        lines = [*self._tail, line]
        tokens = list(_parsed(lines, self._first))
        begin, last = next((begin, token) for begin, token in reversed(tokens) if token.level == 0)
        if last.type == "fence" and begin == len(self._tail):
            return True
        items = [begin for begin, token in tokens if token.level == 1 and token.type == "list_item_open"]
        if items and (sign := _ITEM.match(lines[items[-1]])) is not None:
            self._item_indent = len(sign[0]) if len(sign[0]) <= _indent_of(line) else None
        return False

    def _may_settle(self) -> bool:
        """Whether a new block may have begun since the tail was last parsed."""
        n_lines = len(self._tail)
        if n_lines < 2 or n_lines == self._n_parsed:
            return False
        return n_lines >= self._n_parsed * GROWTH or any(map(_MAY_BEGIN.match, self._tail[self._n_parsed :]))

    def _settle_tail(self) -> None:
        self._settled += _cut(self._tail, _starts(self._tail, self._first))
        self._tail, self._first, self._n_parsed, self._item_indent = [], NOWHERE, 0, None

    def _close_fence(self, *, is_closed: bool) -> None:
        assert self._fence is not None
        self._settled.append(Block("".join(f"{line}\n" for line in self._fence_lines), self._fence, is_closed))
        self._fence, self._fence_lines = None, []


def _indent_of(line: str) -> int:
    return len(line) - len(line.lstrip(" "))


def _parsed(lines: Sequence[str], first: _Start) -> Iterator[tuple[int, Token]]:
    """The tokens of these lines that lines belong to, with the line where each begins.

    Lines that join a list are parsed after an empty item of it: by itself, "* ||" over "-|-" would be a table.
    """
    marker = _MARKER.match(lines[0]) if first.joins and lines else None
    before = [] if marker is None else [marker[0]]
    for token in block_parser().parse("\n".join([*before, *lines]) + "\n") if any(lines) else []:
        if token.map is None:
            continue
        begin = token.map[0] - len(before)
        if begin >= 0 or token.level == 0:
            yield max(0, begin), token


def _starts(lines: Sequence[str], first: _Start) -> list[_Start]:
    """Find where the blocks of these lines start; `first` describes the first of them."""
    starts: list[_Start] = []
    number: int | None = None
    for begin, token in _parsed(lines, first):
        if token.level == 0 and token.type in ("bullet_list_open", "ordered_list_open"):
            has_numbers = token.type == "ordered_list_open"
            number = int(token.attrs.get("start", 1)) if has_numbers else None
            is_first_item = True
            if has_numbers and not starts and first.number is not None:
                number = first.number
        elif token.level == 1 and token.type == "list_item_open":
            joins = not is_first_item or (not starts and first.joins)
            starts.append(_Start(begin, number, joins))
            number, is_first_item = None if number is None else number + 1, False
        elif token.level == 0 and token.nesting >= 0:
            starts.append(_Start(begin))
    return starts


def _cut(lines: Sequence[str], starts: Sequence[_Start]) -> list[Block]:
    """Cut lines into blocks, dropping the blank lines between them."""
    blocks = []
    for place, start in enumerate(starts):
        end = starts[place + 1].line if place + 1 < len(starts) else len(lines)
        if source := "\n".join(lines[start.line : end]).rstrip():
            blocks.append(Block(source, number=start.number, joins=start.joins))
    return blocks
