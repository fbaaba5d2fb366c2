"""Code fences: finding them in a text, for copying, saving and drawing.

In: text. Out: `Fence`s in order, the last one perhaps without an end, and what a line opens. As CommonMark has them:
three or more backticks or tildes, at most three spaces before them; the closing line has at least as many.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from edgeinfer.app.tui.text.parsing import block_parser

_OPENING = re.compile(r"^( {0,3})(`{3,}(?=[^`]*$)|~{3,})[ \t]*(.*?)[ \t]*$")
_AROUND = re.compile(r"^(?:[ \t>]|[-*+][ \t]|\d{1,9}[.)][ \t])*")
"""Signs of the quotes and lists that a line stands in."""


@dataclass(frozen=True, slots=True)
class Fence:
    """A code fence: what stands in it, without the lines that open and close it.

    `begin_line` and `end_line`: the lines of the text it takes, the end not included.
    """

    language: str
    text: str
    is_closed: bool
    begin_line: int
    end_line: int


@dataclass(frozen=True, slots=True)
class FenceStart:
    """A line that opens a fence: its indentation, sign, their number and the language."""

    indent: int
    sign: str
    count: int
    language: str

    def is_closed_by(self, line: str) -> bool:
        """Whether a line ends the fence."""
        bare = line.rstrip(" \t").lstrip(" ")
        return len(line) - len(line.lstrip(" ")) <= 3 and len(bare) >= self.count and set(bare) == {self.sign}

    def content(self, line: str) -> str:
        """A line of the fence without the indentation that the opening one has too."""
        n_spaces = len(line) - len(line.lstrip(" "))
        return line[min(self.indent, n_spaces) :]


def opening_of(line: str) -> FenceStart | None:
    """The fence that a line opens, if it does."""
    found = _OPENING.match(line)
    if found is None:
        return None
    words = found[3].split()
    return FenceStart(len(found[1]), found[2][0], len(found[2]), words[0] if words else "")


def fences_of(text: str) -> tuple[Fence, ...]:
    """All fences of a text, those in lists and quotes too, as they are drawn."""
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
    """Whether a fence's last line is its closing one."""
    bare = _AROUND.sub("", line, count=1).rstrip(" \t")
    return len(bare) >= len(markup) and set(bare) == {markup[0]}
