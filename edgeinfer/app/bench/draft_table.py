"""Tables and JSON of the gain from speculation, from the figures of `draft_figures`.

In: `DraftFigures`. Out: lines of text, or a dict that `json` can write.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict

from edgeinfer.app.bench.draft_figures import DraftFigures, DraftRow

NONE = "–"
"""Placeholder for what was not measured."""

HEAD = (
    *("answers with drafts", "start", "questions", "speedup", "modelled", "tokens/step", "drafting", "slowest"),
    *("differing", "looped", "sources"),
)


def lines(figures: DraftFigures) -> Iterator[str]:
    """The tables as lines of text."""
    table = [HEAD, *map(_cells, figures.rows)]
    for line, cells in zip(aligned([cells[:-1] for cells in table]), table, strict=True):
        yield f"{line}  {cells[-1]}"
    yield "loops are left out; differing: answers that are not those of plain decoding"
    for row in figures.rows[-2:]:
        if row.sizes:
            sizes = ", ".join(f"{size}: {share:.0%}" for size, share in row.sizes.items() if share >= 0.005)
            yield f"tokens checked in a pass, {row.group}, {row.way}: {sizes}"
    for way, tenths in figures.calibration.items():
        pairs = ", ".join(f"{chance:.2f} {right:.2f}" for _, chance, right in tenths)
        yield f"chance estimated and seen, {way}: {pairs}"


def as_json(figures: DraftFigures) -> dict[str, object]:
    """The figures as a dict; keys may be added, never renamed."""
    rows = [asdict(row) | {"sizes": {str(size): share for size, share in row.sizes.items()}} for row in figures.rows]
    calibration = {
        way: [{"candidates": n, "estimated": chance, "seen": right} for n, chance, right in tenths]
        for way, tenths in figures.calibration.items()
    }
    return {"rows": rows, "calibration": calibration}


def _cells(row: DraftRow) -> tuple[str, ...]:
    sources = sorted(row.sources.items(), key=lambda one: -one[1])
    return (
        row.group,
        row.way,
        str(row.n_questions),
        *(_times(value) for value in (row.speedup, row.modelled)),
        NONE if row.accepted_per_step is None else f"{row.accepted_per_step:.2f}",
        NONE if row.drafting_share is None else f"{row.drafting_share:.1%}",
        _times(row.slowest),
        str(row.n_differing),
        str(row.n_looped),
        ", ".join(f"{name} {share:.0%}" for name, share in sources if share >= 0.005),
    )


def _times(value: float | None) -> str:
    return NONE if value is None else f"{value:.2f}×"


def aligned(table: Sequence[Sequence[str]]) -> Iterator[str]:
    """Format cells in columns: the first two left-aligned, numbers right-aligned."""
    widths = [max(len(row[place]) for row in table) for place in range(len(table[0]))]
    for row in table:
        cells = [
            cell.ljust(width) if place < 2 else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        yield "  ".join(cells).rstrip()
