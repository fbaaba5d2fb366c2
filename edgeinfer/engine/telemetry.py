"""Telemetry of a loaded model: queue, memory, reads from disk, and how much of the machine it may use.

In: the parts of an open model. Out: numbers and records, readable from any thread. Runs no request and changes nothing.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import cached_property

from edgeinfer.backends.base import Limits
from edgeinfer.engine.model_info import ModelInfo
from edgeinfer.engine.offload.weight_placement import StageBytes, stage_bytes_of, streamed_of
from edgeinfer.engine.run.evaluators import Subject, Tally
from edgeinfer.engine.run.observed import LastStep, StageSeconds, median_stages, stage_seconds
from edgeinfer.engine.scheduler.scheduler import Scheduler
from edgeinfer.engine.scheduler.stats import ActiveRequest, QueueStats
from edgeinfer.engine.shared_lane.lane import SharedLane
from edgeinfer.errors import UnsupportedModel
from edgeinfer.graph.step import PAGE
from edgeinfer.offload.weights import WeightReads
from edgeinfer.scheduling.batch.schedules import Schedule
from edgeinfer.scheduling.cost.work import ModelWork, work_of
from edgeinfer.scheduling.offload.streaming import Streamed
from edgeinfer.scheduling.workers.governor import PowerPolicy

TIMED_PASSES = 5
"""Most passes to time op by op; the first one runs with cold caches."""
TIMED_S = 0.5
"""Time limit in seconds for starting another timed pass: requests wait meanwhile."""


class Telemetry:
    """Measurements and counters of an open model: `llm.telemetry`."""

    def __init__(self, scheduler: Scheduler, subject: Subject, info: ModelInfo) -> None:
        self._scheduler, self._subject, self._info = scheduler, subject, info
        self._pool = scheduler.pool

    @property
    def requests(self) -> tuple[ActiveRequest, ...]:
        """The running and waiting requests."""
        sequences = self._scheduler.admission.sequences
        return tuple(ActiveRequest(each.state == "active", each.priority, each.live) for each in sequences)

    @property
    def n_requests(self) -> int:
        """Number of running and waiting requests."""
        return len(self._scheduler.admission.sequences)

    @property
    def queue(self) -> QueueStats:
        """Counts of running and waiting requests, and totals so far."""
        admission, counts = self._scheduler.admission, self._scheduler.counts
        swaps = admission.swap.counts
        return QueueStats(
            n_active=len(admission.active),
            n_waiting=len(admission.sequences) - len(admission.active),
            n_kept=len(admission.prefixes.kept),
            n_preempted=swaps.in_ram + swaps.on_disk,
            n_recomputed=swaps.dropped,
            n_passes=counts.passes + self._pool.n_readings,
            n_evaluated=counts.n_evaluated + self._pool.n_read,
            n_generated=counts.n_generated,
            n_pages=self.limits.n_pages,
            n_free_pages=self.n_free_pages,
        )

    @property
    def device(self) -> str:
        """The device in use; after a failure this is not the device the model was loaded on."""
        return self._pool.executor.device

    @property
    def batch_invariant(self) -> bool:
        """Whether the logits of a token are bit-identical whatever else is in the pass."""
        return self._pool.executor.batch_invariant

    @property
    def policy(self) -> PowerPolicy:
        """How much of the machine may be used now, in the mode that the model was loaded with."""
        return self._pool.executor.power_limiter.policy

    @property
    def n_workers(self) -> int:
        """Number of workers that may share a step now."""
        return self._pool.executor.n_workers

    @property
    def affinity(self) -> tuple[tuple[int, ...], ...]:
        """The cores that each worker may run on, as the system reports them; () if it does not."""
        return self._pool.executor.affinity

    @property
    def limits(self) -> Limits:
        """What fits in the cache and in a pass, and where the weights are that do not stay in memory."""
        return self._pool.executor.limits

    @property
    def page_tokens(self) -> int:
        """Tokens per page of the cache."""
        return PAGE

    @property
    def n_free_pages(self) -> int:
        """Number of free pages in the cache."""
        return self._pool.executor.n_free_pages

    @property
    def resident_bytes(self) -> int:
        """Bytes that weights, buffers and the cache take now."""
        return self._pool.executor.resident_bytes

    @property
    def weight_reads(self) -> WeightReads:
        """Total reads so far of weights that do not stay in memory."""
        return self._pool.reading

    @cached_property
    def streamed(self) -> Streamed | None:
        """What every pass reads of the weights; None if all of them stay in memory."""
        stored, spec = self.limits.stored, self._subject.spec
        return None if stored is None or spec is None else streamed_of(spec, self._subject.file, stored)

    @cached_property
    def stage_bytes(self) -> tuple[StageBytes, ...]:
        """Where the weights of each stage were placed at loading; () if all of them stay in memory."""
        stored, spec = self.limits.stored, self._subject.spec
        return () if stored is None or spec is None else stage_bytes_of(spec, self._subject.file, stored)

    @property
    def shared(self) -> SharedLane | None:
        """What several devices do, and when they did it in the last pass; None if one device has the whole model."""
        return self._pool.executor.capabilities.shared

    @property
    def passes_by_schedule(self) -> Mapping[Schedule, Tally]:
        """Counts of passes by schedule, if two devices share the sequences of batches."""
        overlapping = self._pool.executor.capabilities.overlapping
        return {} if overlapping is None else overlapping.tallies

    @property
    def last_step(self) -> LastStep | None:
        """Duration of the last step and the workers that took part; None if the device does not measure it."""
        step_times = self._pool.executor.capabilities.step_times
        return None if step_times is None else step_times.last_step

    def time_stages(self, n_cached: int = 0) -> tuple[StageSeconds, ...]:
        """Measure now how long each stage takes in a pass of one token after `n_cached`: medians of a few passes.

        Returns () if the device does not measure it, or while a request is running.
        """
        spec, timed = self._subject.spec, list[tuple[StageSeconds, ...]]()
        step_times = self._pool.executor.capabilities.step_times
        if spec is None or step_times is None or not self._pool.lock.acquire(blocking=False):
            return ()
        try:
            ends = time.monotonic() + TIMED_S
            while self._pool.idle_s > 0 and len(timed) < TIMED_PASSES and (not timed or time.monotonic() < ends):
                ops = step_times.time_ops(n_cached)
                if not ops:
                    return ()
                timed.append(stage_seconds(spec, ops))
        finally:
            self._pool.lock.release()
        return median_stages(timed)

    @property
    def work(self) -> ModelWork:
        """The work of the model's stages, for predictions.

        Raises UnsupportedModel if another program runs the model.
        """
        if self._subject.spec is None:
            name, device = self._info.name, self._info.device
            raise UnsupportedModel(f"edgeinfer does not know what {name} has to do: {device} does")
        return work_of(self._subject.spec, self._subject.file.tensors)
