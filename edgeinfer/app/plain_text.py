"""Plain text for terminals: counts in words, tables, no control characters.

In: numbers and nouns, seconds, text, rows of cells. Out: text; columns are as wide as their longest cell, two spaces
between them, without the control characters that file names may contain. English only.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

KEPT_CONTROLS = "\n\t"


def counted(number: int, one: str, several: str | None = None) -> str:
    """Format a count; `several` is the plural if it is not `one` plus s."""
    return f"{number} {one if number == 1 else several or one + 's'}"


def seconds_text(seconds: float) -> str:
    """Format seconds: 12 us, 3.4 ms, 1.2 s."""
    for unit, size in (("s", 0.9995), ("ms", 0.9995e-3)):
        if seconds >= size:
            return f"{seconds * (1 if unit == 's' else 1e3):.3g} {unit}"
    return f"{seconds * 1e6:.3g} us"


def harmless(text: str) -> str:
    """Text without control characters other than line ends and tabs."""
    return "".join(c for c in text if c in KEPT_CONTROLS or not (c < " " or "\x7f" <= c <= "\x9f"))


def table_lines(rows: Sequence[Sequence[str]]) -> list[str]:
    """The lines of a table; all rows have the same number of cells."""
    shown = [[" ".join(harmless(cell).split()) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*shown, strict=True)]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in shown)
    return [printable(line.rstrip()) for line in lines]


def printable(line: str) -> str:
    """A line that standard output can encode: file names need not be text in any encoding."""
    encoding, errors = sys.stdout.encoding or "utf-8", sys.stdout.errors or "strict"
    try:
        line.encode(encoding, errors)
    except UnicodeEncodeError:
        return line.encode(encoding, "backslashreplace").decode(encoding)
    return line
