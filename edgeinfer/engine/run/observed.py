"""Inspection of a running executor: its devices, cores and weights, and how long steps and ops took.

In: an executor's lane. Out: plain values. Everything but `time_ops` may be called from any thread and never waits: it
describes the last step or the one before it.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from edgeinfer.backends.base import WHOLE, Lane, Limits, OpSeconds
from edgeinfer.backends.capabilities import LaneCapabilities
from edgeinfer.engine.kv import saved_state
from edgeinfer.engine.kv.kvcache import KVCache
from edgeinfer.engine.kv.pages import NO_COPIES, PlacedStep
from edgeinfer.engine.kv.reading import step_of_cached
from edgeinfer.engine.offload.streaming import Pressure
from edgeinfer.engine.shared_lane.lane import SharedLane
from edgeinfer.graph.graph import ModelSpec
from edgeinfer.graph.ops.attention import Attention
from edgeinfer.graph.ops.gated_act import GatedAct
from edgeinfer.graph.step import PAGE, Batch
from edgeinfer.offload.weights import WeightReads, with_activations

SPARE_PAGES = 2
"""Pages that a timed pass leaves free, including its own."""


@dataclass(frozen=True, slots=True)
class LastStep:
    """A step: which workers took part, each one's share of the step, and how long each was busy with it.

    The unit of `busy` is arbitrary; () if a step with other workers is running now.
    """

    seconds: float
    workers: tuple[int, ...]
    shares: tuple[float, ...]
    busy: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class StageSeconds:
    """Time of a stage within a pass, split by kind of op. A gate counts with its product."""

    stage: str
    products_s: float
    attention_s: float
    others_s: float

    @property
    def seconds(self) -> float:
        return self.products_s + self.attention_s + self.others_s


class Observed:
    """The part of an executor that can be inspected."""

    _lane: Lane | None
    _limits: Limits
    _cache: KVCache
    _reads: bool
    _of_lane: LaneCapabilities
    _pressure: Pressure | None

    @property
    def shared(self) -> SharedLane | None:
        """The lane over several devices, if there are several."""
        return self._lane if isinstance(self._lane, SharedLane) else None

    @property
    def affinity(self) -> tuple[tuple[int, ...], ...]:
        """The cores each worker may run on, as the system reports them; () where it does not."""
        workers = self._of_lane.workers
        return () if workers is None else workers.affinity

    @property
    def reading(self) -> WeightReads:
        """Weights read because they do not stay in memory, and activations skipped."""
        return with_activations(
            WeightReads() if self._pressure is None else self._pressure.reading, self._of_lane.cutting
        )

    @property
    def resident_bytes(self) -> int:
        """Bytes of memory the lane holds; 0 when closed."""
        return 0 if self._lane is None else self._lane.resident_bytes

    @property
    def last_step(self) -> LastStep | None:
        """As `StepTimes.last_step`."""
        workers = self._of_lane.workers
        if workers is None:
            return None
        work_split, timing = workers.work_split, workers.timing
        shares = tuple((stop - start) / WHOLE for start, stop in pairwise(work_split.cuts))
        busy = timing.busy if len(timing.busy) == len(work_split.workers) else ()
        return LastStep(timing.seconds, work_split.workers, shares, busy)

    def time_ops(self, n_cached: int) -> Sequence[OpSeconds]:
        """As `StepTimes.time_ops`."""
        lane, op_times, room = self._lane, self._of_lane.op_times, (self._cache.n_free_pages - SPARE_PAGES) * PAGE
        n_cached = min(n_cached, room, self._limits.n_context - 1)
        if lane is None or op_times is None or n_cached < 0:
            return ()
        sequence = self._cache.create()
        try:
            saved_state.fill_with_zeros(self._cache, lane, sequence, n_cached)
            return op_times.time_ops(self._place(lane, _one_token(sequence, n_cached)).step)
        finally:
            self._cache.free(sequence)

    def _place(self, lane: Lane, batch: Batch) -> PlacedStep:
        """A batch placed in the lane's KV cache, ready to run. Raises as `KVCache.place`."""
        if self._reads:
            return PlacedStep(step_of_cached(self._cache, batch), NO_COPIES)
        placement = self._cache.place(batch)
        windows = self._of_lane.windows
        if self._cache.windows is not None and windows is not None:
            self._cache.windows.tell(windows)
        placement.copies.apply(lane)
        return placement


def _one_token(sequence: int, n_cached: int) -> Batch:
    nothing, first = np.zeros(1, np.int32), np.full(1, -1, np.int32)
    return Batch(nothing, np.full(1, sequence, np.int32), np.full(1, n_cached, np.int32), first, nothing)


def stage_seconds(spec: ModelSpec, ops: Sequence[OpSeconds]) -> tuple[StageSeconds, ...]:
    """Time of each stage of a model, from the op times of a pass."""
    stage_of = {id(op): stage.name for stage in spec.stages for op in stage.ops}
    sums = {stage.name: [0.0, 0.0, 0.0] for stage in spec.stages}
    for each in ops:
        is_product = each.multiplies or isinstance(each.op, GatedAct)
        kind = 0 if is_product else 1 if isinstance(each.op, Attention) else 2
        sums[stage_of[id(each.op)]][kind] += each.seconds
    return tuple(StageSeconds(stage, *seconds) for stage, seconds in sums.items())


def median_stages(passes: Sequence[Sequence[StageSeconds]]) -> tuple[StageSeconds, ...]:
    """The median of several passes for each stage; () for none."""
    return tuple(
        StageSeconds(
            times[0].stage,
            statistics.median(each.products_s for each in times),
            statistics.median(each.attention_s for each in times),
            statistics.median(each.others_s for each in times),
        )
        for times in zip(*passes, strict=True)
    )
