"""Code fences: finding them in a text, for copying, saving and drawing.

In: text. Out: `Fence`s in order, the last one perhaps without an end. As CommonMark has them: three or more backticks
or tildes, at most three spaces before them; the closing line has at least as many.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_OPENING = re.compile(r"^( {0,3})(`{3,}(?=[^`]*$)|~{3,})[ \t]*(.*?)[ \t]*$")
_IN_LIST = re.compile(r"^[ \t]*(?:[-*+]|\d{1,9}[.)])?[ \t]*")


@dataclass(frozen=True, slots=True)
class Fence:
    """A code fence: what stands in it, without the lines that open and close it."""

    language: str
    text: str
    is_closed: bool


@dataclass(frozen=True, slots=True)
class Opening:
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


def opening_of(line: str) -> Opening | None:
    """The fence that a line opens, if it does."""
    found = _OPENING.match(line)
    if found is None:
        return None
    words = found[3].split()
    return Opening(len(found[1]), found[2][0], len(found[2]), words[0] if words else "")


def fences_of(text: str) -> tuple[Fence, ...]:
    """All fences of a text, those in lists and quotes too."""
    found: list[Fence] = []
    opening: Opening | None = None
    body: list[str] = []
    depth = 0
    for line in text.replace("\r\n", "\n").split("\n"):
        if opening is None:
            marker = _IN_LIST.match(line)
            depth = marker.end() if marker else 0
            opening, body = opening_of(line[depth:]), []
            continue
        inner = line[min(depth, len(line) - len(line.lstrip(" \t"))) :]
        if opening.is_closed_by(inner):
            found.append(Fence(opening.language, _joined(body), True))
            opening = None
        else:
            body.append(opening.content(inner))
    if opening is not None:
        found.append(Fence(opening.language, _joined(body), False))
    return tuple(found)


def _joined(lines: list[str]) -> str:
    return "".join(f"{line}\n" for line in lines)
