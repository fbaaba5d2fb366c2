"""Markdown cut into blocks that can be drawn one by one, whole or while it grows.

In: text, whole or in pieces. Out: `Block`s: top-level ones, lists item by item. Settled ones never change again: only
what is after them is looked at when more text comes, and an open code fence grows by lines without being parsed.
Knows nothing of how they are drawn.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from edgeinfer.app.tui.text.fences import FenceStart, opening_of
from edgeinfer.app.tui.text.parsing import block_parser

GROWTH = 1.25
"""A tail in which nothing seems to begin is parsed again when it is so much longer: a long table costs little."""
LEAST_ITEM_INDENT = 2
"""Of a line that goes on with an item: one that stands further left and opens a fence belongs to none."""
_ITEM = re.compile(r" {0,3}(?:[-*+]|\d{1,9}[.)]) {1,4}(?=\S)")
_MAY_BEGIN = re.compile(r"^\s*$|^ {0,3}(?:[-*+#]|\d{1,9}[.)])")


@dataclass(frozen=True, slots=True)
class Block:
    """A paragraph, table, heading, item of a list, … (`opening` None), or a code fence and the lines in it.

    `number`: of an item, where its list has numbers. `joins`: it goes on with the list of the block before.
    """

    source: str
    opening: FenceStart | None = None
    is_closed: bool = True
    number: int | None = None
    joins: bool = False


@dataclass(frozen=True, slots=True)
class _Start:
    """Where a block begins: at which line, and what it is in its list."""

    line: int
    number: int | None = None
    joins: bool = False


NOWHERE = _Start(0)


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
        self._first = NOWHERE  # what the tail begins as
        self._n_parsed = 0  # lines of the tail that were parsed
        self._line = ""  # the line that is not complete
        self._fence: FenceStart | None = None
        self._fence_lines: list[str] = []
        self._item_indent: int | None = None  # of what goes on with the item that the tail ends in, where it is known

    @property
    def settled(self) -> tuple[Block, ...]:
        """Blocks that will not change."""
        return tuple(self._settled)

    @property
    def n_settled(self) -> int:
        return len(self._settled)

    @property
    def open_fence(self) -> tuple[FenceStart, Sequence[str], str] | None:
        """The fence that the text ends in: its complete lines, and what there is of the next one."""
        return None if self._fence is None else (self._fence, self._fence_lines, self._fence.content(self._line))

    @property
    def tail(self) -> Block | None:
        """Text after the settled blocks, where it is not in a fence."""
        source = "" if self._fence is not None else "".join(f"{line}\n" for line in self._tail) + self._line
        return Block(source, number=self._first.number, joins=self._first.joins) if source.strip() else None

    def since(self, n_settled: int) -> list[Block]:
        """Blocks that were settled after the first so many."""
        return self._settled[n_settled:]

    def push(self, text: str) -> None:
        """More text."""
        *lines, self._line = (self._line + text).split("\n")
        for line in lines:
            self._take(line)

    def settle(self) -> None:
        """Settle what is followed by another block. Without it, all of it is done when the text is over."""
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
        """The text is over: all of it is settled."""
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
        """A line is complete."""
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
        """Whether a fence that begins here belongs to no list or quote before it."""
        if _indent_of(line) < LEAST_ITEM_INDENT or not any(self._tail):
            return True
        if self._item_indent is not None:
            return False
        self.settle()
        lines = [*self._tail, line]
        tokens = [token for token in block_parser().parse("\n".join(lines) + "\n") if token.map]
        last = [token for token in tokens if token.level == 0][-1]
        if last.type == "fence" and last.map is not None and last.map[0] == len(self._tail):
            return True
        item = [token for token in tokens if token.level == 1 and token.type == "list_item_open"][-1:]
        if item and item[0].map is not None and (sign := _ITEM.match(lines[item[0].map[0]])) is not None:
            self._item_indent = len(sign[0]) if len(sign[0]) <= _indent_of(line) else None
        return False

    def _may_settle(self) -> bool:
        """Whether another block may have begun since the tail was parsed."""
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


def _starts(lines: Sequence[str], first: _Start) -> list[_Start]:
    """Where the blocks of these lines begin; `first` says what the first of them is."""
    starts: list[_Start] = []
    number: int | None = None
    for token in block_parser().parse("\n".join(lines) + "\n") if any(lines) else []:
        if token.map is None:
            continue
        if token.level == 0 and token.type in ("bullet_list_open", "ordered_list_open"):
            has_numbers = token.type == "ordered_list_open"
            number = int(token.attrs.get("start", 1)) if has_numbers else None
            is_first_item = True
            if has_numbers and not starts and first.number is not None:
                number = first.number
        elif token.level == 1 and token.type == "list_item_open":
            joins = not is_first_item or (not starts and first.joins)
            starts.append(_Start(token.map[0], number, joins))
            number, is_first_item = None if number is None else number + 1, False
        elif token.level == 0 and token.nesting >= 0:
            starts.append(_Start(token.map[0]))
    return starts


def _cut(lines: Sequence[str], starts: Sequence[_Start]) -> list[Block]:
    """Lines as blocks, without the empty lines between them."""
    blocks = []
    for place, start in enumerate(starts):
        end = starts[place + 1].line if place + 1 < len(starts) else len(lines)
        if source := "\n".join(lines[start.line : end]).rstrip():
            blocks.append(Block(source, number=start.number, joins=start.joins))
    return blocks
