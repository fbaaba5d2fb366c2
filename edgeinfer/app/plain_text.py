"""Plain text for terminals: counts in words, tables, no control characters.

In: numbers and nouns, seconds, text, rows of cells. Out: text; columns are as wide as their longest cell, two spaces
between them, without the control characters that file names may contain. Commands print with `echo`. English only.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence

import typer

_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
"""Characters that move the cursor, begin a command to the terminal, or show text in another order than it is read."""


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
    """Text without control characters other than line ends and tabs, and without overrides of its direction."""
    return _CONTROLS.sub("", text)


def echo(text: object = "", *, err: bool = False, nl: bool = True) -> None:
    """Print a text, which models, files and servers may have written: harmless on standard error and on terminals."""
    typer.echo(harmless(str(text)) if err or sys.stdout.isatty() else text, err=err, nl=nl)


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
