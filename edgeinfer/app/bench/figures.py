"""Computes figures from runs: medians and ranges, ratios of adjacent runs, verification costs, bytes read per token.

In: samples and failures; of the traffic, a header, a device, a case. Out: frozen rows with the names that the
command-line contract defines. The traffic is computed from sizes: each weight and each cached key and value is counted
once per pass; what a pass reads again, or keeps in caches, is not considered. Measures and prints nothing.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from edgeinfer.app.bench.machine import MemoryBandwidth
from edgeinfer.app.bench.request import Case
from edgeinfer.app.bench.rounds import CaseResult, Sample, neighbours, rates
from edgeinfer.backends.base import Footprint, Limits, kind_of
from edgeinfer.engine.kv.limits import limits_for
from edgeinfer.graph.graph import ModelSpec
from edgeinfer.models.gguf import TensorInfo
from edgeinfer.models.work import pass_work, unread_bytes
from edgeinfer.settings import KVKind

HALF_BYTES = 2


@dataclass(frozen=True, slots=True)
class TrafficBench:
    """A model on one device."""

    spec: ModelSpec
    tensors: Mapping[str, TensorInfo]
    footprint: Footprint
    limits: Limits

    @classmethod
    def of(
        cls, device: str, spec: ModelSpec, tensors: Mapping[str, TensorInfo], n_context: int, kv: KVKind = "f16"
    ) -> TrafficBench:
        """The traffic of a device; for several devices, that of the first. Raises UnknownKey."""
        limits, first = limits_for(n_context, kv=kv), device.split(",")[0]
        return cls(spec, tensors, kind_of(first).footprint(spec, tensors, limits), limits)

    def bytes_per_token(self, test: str, n: int, depth: int) -> float | None:
        """Bytes read per token in a run of n tokens after `depth` cached ones; None if a whole program is run."""
        if test == "decode":
            passes = [(1, depth + place) for place in range(n)]
        elif test == "verify":
            passes = [(n, depth)]
        elif test == "prefill":
            most = self.limits.max_tokens
            passes = [(min(most, n - start), depth + start) for start in range(0, n, most)]
        else:
            return None
        return sum(self._pass_bytes(count, cached) for count, cached in passes) / n

    def _pass_bytes(self, count: int, cached: int) -> float:
        """Bytes of one pass in the device's formats.

        Weights count once, without experts that no token uses, plus the part of the cache that attention reads.
        """
        reached = pass_work(self.spec, self.tensors, count, cached).kv_bytes
        stored = self.footprint.kv_bytes_per_token / max(1, self.spec.kv_bytes_per_token(HALF_BYTES))
        in_file = sum(info.nbytes for info in self.tensors.values())
        unread = unread_bytes(self.spec, self.tensors, count) / in_file
        return self.footprint.weight_bytes * (1.0 - unread) + reached * stored


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


def peak_memory(samples: Iterable[Sample]) -> dict[str, int]:
    """The most memory that each executor's process held, in bytes, over all of its runs; without those not known."""
    most: dict[str, int] = {}
    for sample in samples:
        held = sample.reply.peak_rss_bytes
        if held is not None:
            most[sample.executor] = max(held, most.get(sample.executor, 0))
    return most
