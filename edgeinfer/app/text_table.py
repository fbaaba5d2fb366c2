"""A text table: columns as wide as their longest cell, two spaces between them.

In: rows of cells. Out: printable lines, without the control characters that file names may contain.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from edgeinfer.app.answer_output import harmless


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
