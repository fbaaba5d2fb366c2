"""Calls of tools in an answer: its text without them while it is generated, and the calls as lines.

In: pieces of an answer and the reader that finds calls in them; rounds of calls. Out: text with thoughts in tags, as
`thinking` reads them; strips, folded to one line a call unless the calls are opened.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from textual.strip import Strip

from edgeinfer.app.plain_text import counted
from edgeinfer.app.sessions.records import MadeCall, ToolRound
from edgeinfer.app.tui.text.drawing import Drawer
from edgeinfer.app.tui.text.growing_lines import GrowingLines
from edgeinfer.app.tui.text.neutral import neutral
from edgeinfer.app.tui.text.thinking import PAIRS

if TYPE_CHECKING:
    from edgeinfer.models.text.answer_reader import AnswerReader

BEGIN, END = f"{PAIRS[0][0]}\n", f"\n{PAIRS[0][1]}\n\n"
FOLDED_CHARACTERS = 60
"""Characters of arguments and of a result in the line of a folded call."""


class ShownText:
    """The text of an answer as it grows: thoughts in tags first, then content; calls are left out."""

    def __init__(self, reader: AnswerReader | None) -> None:
        """`reader`: None if there is only content."""
        self._reader = reader
        self._n_thoughts, self._is_thinking = 0, False
        self._has_content = False
        self._pieces: list[str] = []

    @property
    def text(self) -> str:
        """The text so far."""
        return "".join(self._pieces)

    @property
    def n_characters(self) -> int:
        """The number of characters of the text so far."""
        return sum(map(len, self._pieces))

    def push(self, piece: str) -> str:
        """Add a piece of the answer. Returns what there is to show of it."""
        return self._took(piece if self._reader is None else self._read(self._reader, self._reader.push(piece)))

    def finish(self) -> str:
        """End the answer. Returns the rest."""
        return self._took("" if self._reader is None else self._read(self._reader, self._reader.finish()))

    def _read(self, reader: AnswerReader, content: str) -> str:
        thoughts = reader.thoughts.rstrip()  # white space comes with what follows it
        more, self._n_thoughts = thoughts[self._n_thoughts :], len(thoughts)
        shown = ""
        if more and not self._has_content:  # later thoughts have no place in a text
            shown, self._is_thinking = f"{'' if self._is_thinking else BEGIN}{more}", True
        if content:
            shown += f"{END if self._is_thinking else ''}{content}"
            self._is_thinking, self._has_content = False, True
        return shown

    def _took(self, shown: str) -> str:
        self._pieces.append(shown)
        return shown


class CallLines:
    """Rounds of calls as lines of an answer."""

    def __init__(self, rounds: tuple[ToolRound, ...] = ()) -> None:
        self.rounds = rounds

    @property
    def n_calls(self) -> int:
        """The number of calls."""
        return sum(len(each.calls) for each in self.rounds)

    def lines(self, drawer: Drawer, *, is_open: bool) -> tuple[list[Strip], list[int]]:
        """The lines, and the places of those that announce calls."""
        lines: list[Strip] = []
        places: list[int] = []
        for each in self.rounds:
            if is_open and each.thoughts.strip():
                lines += [*drawer.plain(neutral(each.thoughts).strip("\n"), drawer.palette.muted), Strip.blank(0)]
            if each.text.strip():
                lines += [*_markdown_lines(each.text, drawer), Strip.blank(0)]
            for call in each.calls:
                places.append(len(lines))
                lines += _call_lines(call, drawer, is_open=is_open)
            if each.calls:
                lines.append(Strip.blank(0))
        return lines, places


def _markdown_lines(text: str, drawer: Drawer) -> list[Strip]:
    growing = GrowingLines()
    growing.push(neutral(text).strip("\n"))
    growing.finish()
    return growing.lines(drawer)


def _call_lines(call: MadeCall, drawer: Drawer, *, is_open: bool) -> list[Strip]:
    muted, outcome = drawer.palette.muted, "failed" if call.failed else "gave"
    if is_open:
        head = f"▾ called {_line(call.name)} (Alt+T), which {outcome} {counted(len(call.result), 'character')}"
        parts = (readable(call.arguments), call.result)
        body = [strip for part in parts for strip in drawer.plain(_indented(neutral(part)), muted)]
        return [*drawer.plain(head, muted), *body]
    line = f"▸ called {_line(call.name)} {_cut(call.arguments)}, which {outcome}: {_cut(call.result)} (Alt+T)"
    return drawer.plain(line, muted)


def readable(arguments: str) -> str:
    """The arguments of a call, indented if they are JSON."""
    try:
        return json.dumps(json.loads(arguments), indent=2, ensure_ascii=False)
    except (ValueError, RecursionError):
        return arguments


def _indented(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.strip("\n").split("\n"))


def _line(text: str) -> str:
    return " ".join(neutral(text).split())


def _cut(text: str) -> str:
    line = _line(text)
    return line if len(line) <= FOLDED_CHARACTERS else f"{line[:FOLDED_CHARACTERS]}…"
