"""Computes figures from runs: rows of medians and ranges, ratios of adjacent runs, the cost of verification passes.

In: samples and failures. Out: frozen rows with the names that the command-line contract defines. Measures and prints
nothing.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from edgeinfer.app.bench.cases import Case
from edgeinfer.app.bench.machine import MemoryBandwidth
from edgeinfer.app.bench.rounds import CaseResult, Sample, neighbours, rates
from edgeinfer.app.bench.traffic import TrafficBench


@dataclass(frozen=True, slots=True)
class Spread:
    """Median, minimum and maximum; None where nothing was measured."""

    median: float | None
    min: float | None
    max: float | None

    @classmethod
    def of(cls, values: Iterable[float]) -> Spread:
        """The spread of some values."""
        kept = list(values)
        return cls(statistics.median(kept), min(kept), max(kept)) if kept else cls(None, None, None)


@dataclass(frozen=True, slots=True)
class BenchRow:
    """One executor in one test with n tokens. `cost`: T(n) / T(1) of verification passes."""

    test: str
    executor: str
    n: int
    depth: int
    tok_s: Spread
    seconds: Spread
    bytes_per_token: float | None = None
    share_of_bandwidth: float | None = None
    share_of_model_bandwidth: float | None = None
    accepted_per_step: float | None = None
    cost: float | None = None
    cold: bool = False
    busy_runs: int = 0
    categories: Mapping[str, float] = field(default_factory=dict)
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class Ratio:
    """Speed of `executor` divided by that of `against`, from adjacent runs; above 1, `executor` is faster."""

    test: str
    executor: str
    against: str
    n: int
    depth: int
    values: Spread
    cold: bool = False


def rows(
    measured: CaseResult, case: Case, names: Sequence[str], traffic: Mapping[str, TrafficBench], memory: MemoryBandwidth
) -> list[BenchRow]:
    """One row per executor and number of tokens; a failed executor has one row with its problem."""
    found = []
    for name in names:
        samples = [sample for sample in measured.samples if sample.executor == name]
        problem = next((failure.problem for failure in measured.failures if failure.executor == name), None)
        if not samples:
            nothing = Spread.of(())
            found.append(
                BenchRow(case.test, name, case.n, case.depth, nothing, nothing, cold=case.cold, problem=problem)
            )
        for n in sorted({n for sample in samples for n in sample.reply.seconds}):
            own = traffic.get(name)
            n_bytes = own.bytes_per_token(case.test, n, case.depth) if own else None
            found.append(_row(case, name, n, samples, n_bytes, memory, problem))
    return found


def _row(
    case: Case,
    name: str,
    n: int,
    samples: Sequence[Sample],
    n_bytes: float | None,
    memory: MemoryBandwidth,
    problem: str | None,
) -> BenchRow:
    having = [sample.reply for sample in samples if n in sample.reply.seconds]
    seconds = Spread.of(reply.seconds[n] for reply in having)
    tok_s = Spread.of(() if case.test == "start" else (rates(reply)[n] for reply in having))
    accepted = [reply.accepted_per_step for reply in having if reply.accepted_per_step is not None]
    read = n_bytes * tok_s.median if n_bytes is not None and tok_s.median is not None else None
    costs = [reply.seconds[n] / reply.seconds[1] for reply in having if case.counts and reply.seconds.get(1)]
    categories = {part for reply in having for part in reply.categories}
    return BenchRow(
        case.test,
        name,
        n,
        case.depth,
        tok_s,
        seconds,
        bytes_per_token=n_bytes,
        share_of_bandwidth=_share(read, memory.read_bytes_s),
        share_of_model_bandwidth=_share(read, memory.model_read_bytes_s),
        accepted_per_step=statistics.median(accepted) if accepted else None,
        cost=statistics.median(costs) if costs else None,
        cold=case.cold,
        busy_runs=sum(sample.busy for sample in samples),
        categories={part: statistics.median(reply.categories[part] for reply in having) for part in sorted(categories)},
        problem=problem,
    )


def _share(read: float | None, possible: float | None) -> float | None:
    return read / possible if read is not None and possible else None


def ratios(measured: CaseResult, case: Case, first: str, others: Sequence[str]) -> list[Ratio]:
    """Speed ratios of `first` to each other executor, by number of tokens (one for chats, as lengths differ)."""
    found = []
    for other in others:
        values: dict[int, list[float]] = {}
        for one, two in neighbours(measured.samples, first, other):
            ours, theirs = rates(one.reply), rates(two.reply)
            if case.test == "chat":  # our devices may give answers of different lengths
                ours, theirs = ({case.n: next(iter(side.values()))} for side in (ours, theirs))
            for n in ours.keys() & theirs.keys():
                values.setdefault(n, []).append(ours[n] / theirs[n])
        found += [
            Ratio(case.test, first, other, n, case.depth, Spread.of(values[n]), case.cold) for n in sorted(values)
        ]
    return found


def verify_cost(found: Sequence[BenchRow], first: str) -> dict[int, float]:
    """T(k) / T(1) of `first` at the first depth that was measured."""
    measured = [row for row in found if row.executor == first and row.cost is not None]
    return {row.n: row.cost for row in measured if row.cost is not None and row.depth == measured[0].depth}
