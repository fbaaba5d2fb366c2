"""Text in columns.

In: rows of cells. Out: lines.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

NONE = "–"
"""Stands for what was not measured."""


def aligned(table: Sequence[Sequence[str]]) -> Iterator[str]:
    """Cells in columns: the first two to the left, numbers to the right."""
    widths = [max(len(row[place]) for row in table) for place in range(len(table[0]))]
    for row in table:
        cells = [
            cell.ljust(width) if place < 2 else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        yield "  ".join(cells).rstrip()
