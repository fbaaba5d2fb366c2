"""The gain from speculation: conversations run with and without it, by category and in total, as tables and JSON.

In: `DraftRun`s. Out: `DraftRow`s and a calibration, lines of text, or a dict that `json` can write. Rows with the
settings of `edgeinfer chat` lead, with all its questions first. Speedups use medians over repeats; totals add up tokens
and seconds. Spec-Bench's eight small categories form one group, MT-Bench, as in its own tables. Measures nothing.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from types import MappingProxyType

from edgeinfer.app.bench.subject import AS_CHAT, DraftRun

MT_BENCH = ("writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities")
GROUPS = MappingProxyType(dict.fromkeys(MT_BENCH, "mt_bench"))
WAYS = ("cold", "warm")
ALL = "all"


@dataclass(frozen=True, slots=True)
class DraftRow:
    """One group of questions answered one way with one sampling, without loops.

    speedup     seconds of plain decoding divided by seconds with drafts
    modelled    the same from the measured or assumed costs of passes, without the time of drafting itself; None if
                passes of one size were requested, whose costs are not measured
    sources     accepted tokens by draft source, as shares of all tokens; "model" are those the model chose itself
    """

    group: str
    way: str
    n_questions: int
    speedup: float | None
    modelled: float | None
    accepted_per_step: float | None
    drafting_share: float | None
    sources: Mapping[str, float]
    n_looped: int
    n_differing: int
    slowest: float | None
    sizes: Mapping[int, float]
    sampling: str = AS_CHAT


@dataclass(frozen=True, slots=True)
class DraftFigures:
    """All figures. `calibration`: by way, then candidates, their mean estimated probability and the share accepted.

    Its keys are the ways for the first sampling; for others, they begin with the sampling's name.
    """

    rows: tuple[DraftRow, ...]
    calibration: Mapping[str, tuple[tuple[int, float, float], ...]]


def draft_figures(conversations: Sequence[Sequence[DraftRun]]) -> DraftFigures:
    """Compute the figures of conversations, each given with its runs."""
    rows: list[DraftRow] = []
    calibration: dict[str, tuple[tuple[int, float, float], ...]] = {}
    for place, sampling in enumerate(dict.fromkeys(run.sampling for runs in conversations for run in runs)):
        led = [[run for run in runs if run.sampling == sampling] for runs in conversations]
        groups: dict[str, list[Sequence[DraftRun]]] = {ALL: [*led]}
        for runs in led:
            groups.setdefault(GROUPS.get(runs[0].category, runs[0].category), []).append(runs)
        if len(groups) == 2:
            del groups[ALL]
        rows += [_row(group, way, sampling, each) for group, each in groups.items() for way in WAYS]
        calibration |= {f"{sampling} {way}" if place else way: _calibration(led, way) for way in WAYS}
    return DraftFigures(tuple(rows), calibration)


def _row(group: str, way: str, sampling: str, led: Sequence[Sequence[DraftRun]]) -> DraftRow:
    mine = [[run for run in runs if run.way == way] for runs in led]
    plain = [[run for run in runs if run.way == "off"] for runs in led]
    first = [runs[0] for runs in mine]
    kept, passes, cost = (sum(getattr(run, name) for run in first) for name in ("n_kept", "n_passes", "cost"))
    seconds, plain_s = (sum(map(_median_s, each)) for each in (mine, plain))
    single = [_ratio(_median_s(one), _median_s(other)) for one, other in zip(plain, mine, strict=True)]
    return DraftRow(
        group,
        way,
        len(led),
        speedup=_ratio(plain_s, seconds),
        modelled=_ratio(kept, cost),
        accepted_per_step=_ratio(kept, passes),
        drafting_share=_ratio(sum(run.drafting_s for run in first), sum(run.seconds for run in first)),
        sources=_sources(first),
        n_looped=sum(run.looped for run in first),
        n_differing=sum(any(not run.same for run in runs) for runs in mine),
        slowest=min((ratio for ratio in single if ratio is not None), default=None),
        sizes=_sizes(first),
        sampling=sampling,
    )


def _median_s(runs: Sequence[DraftRun]) -> float:
    return statistics.median(run.seconds for run in runs) if runs else 0.0


def _ratio(over: float, under: float) -> float | None:
    return over / under if under > 0 and over > 0 else None


def _sources(runs: Iterable[DraftRun]) -> dict[str, float]:
    accepted: dict[str, int] = {}
    n_tokens = 0
    for run in runs:
        n_tokens += run.n_tokens
        for name, (_, right) in run.sources.items():
            accepted[name] = accepted.get(name, 0) + right
    if not n_tokens:
        return {}
    shares = {name: count / n_tokens for name, count in accepted.items() if count}
    return {"model": 1 - sum(shares.values()), **shares}


def _sizes(runs: Iterable[DraftRun]) -> dict[int, float]:
    """Shares of passes by the number of tokens they verified."""
    counts: dict[int, int] = {}
    for run in runs:
        for size, count in run.sizes.items():
            counts[int(size)] = counts.get(int(size), 0) + count
    total = sum(counts.values())
    return {size: counts[size] / total for size in sorted(counts)}


def _calibration(conversations: Sequence[Sequence[DraftRun]], way: str) -> tuple[tuple[int, float, float], ...]:
    totals: list[list[float]] = []
    for runs in conversations:
        for run in runs:
            if run.way == way and run.repeat == 0:
                totals = totals or [[0.0, 0.0, 0.0] for _ in run.calibration]
                for total, values in zip(totals, run.calibration, strict=True):
                    for place, value in enumerate(values):
                        total[place] += value
    return tuple((int(n), chance / n, right / n) for n, chance, right in totals if n)


NONE = "–"
"""Placeholder for what was not measured."""

HEAD = (
    *("answers with drafts", "start", "questions", "speedup", "modelled", "tokens/step", "drafting", "slowest"),
    *("differing", "looped", "sources"),
)


def draft_lines(figures: DraftFigures) -> Iterator[str]:
    """The tables as lines of text."""
    table = [HEAD, *map(_cells, figures.rows)]
    for line, cells in zip(aligned([cells[:-1] for cells in table]), table, strict=True):
        yield f"{line}  {cells[-1]}"
    yield "chat: with the settings of edgeinfer chat; loops are left out; differing: not the answers of plain decoding"
    for row in figures.rows:
        if row.sizes and row.group in (ALL, figures.rows[0].group):
            sizes = ", ".join(f"{size}: {share:.0%}" for size, share in row.sizes.items() if share >= 0.005)
            yield f"tokens checked in a pass, {row.sampling}, {row.way}: {sizes}"
    for way, tenths in figures.calibration.items():
        pairs = ", ".join(f"{chance:.2f} {right:.2f}" for _, chance, right in tenths)
        yield f"chance estimated and seen, {way}: {pairs}"


def draft_json(figures: DraftFigures) -> dict[str, object]:
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
        f"{row.sampling}, {row.group}",
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
