"""Finds code fences in a text, for copying, saving and drawing.

In: text. Out: `Fence`s in order, the last one possibly unclosed, and the fence that a line opens. By the CommonMark
rules: three or more backticks or tildes, indented by at most three spaces; the closing line has at least as many.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from edgeinfer.app.tui.text.parsing import block_parser

_OPENING = re.compile(r"^( {0,3})(`{3,}(?=[^`]*$)|~{3,})[ \t]*(.*?)[ \t]*$")
_AROUND = re.compile(r"^(?:[ \t>]|[-*+][ \t]|\d{1,9}[.)][ \t])*")
"""Markers of the quotes and lists around a line."""


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
