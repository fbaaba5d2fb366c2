"""The machine's cores, each with its part in the last step.

In: the system's counters, the topology, a `LastStep`. Out: `Cores`. Queries the system only when it is queried itself,
and never waits: busy shares cover the time since the last reading.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import psutil

from edgeinfer.app.readings.records import CoreReading, Cores
from edgeinfer.engine.measure.power import SENSOR_ERRORS

if TYPE_CHECKING:
    from edgeinfer.engine.run.observed import LastStep
    from edgeinfer.scheduling.machine.topology import Core, Topology

LOOK_SHARE = 1 / 500
"""Share of the time that reading clock speeds may take: on some systems the query is slow."""
LEAST_S = 0.2
"""Shortest interval between two counts of busy time, which the system reports in hundredths of a second."""


class CoreWatch:
    """Readings of all cores this process may use. `clock` returns seconds."""

    def __init__(self, topology: Topology, clock: Callable[[], float] = time.perf_counter) -> None:
        self._topology = topology
        self._clock = clock
        self._counts: dict[int, tuple[float, float]] = {}
        self._busy: dict[int, float] = {}
        self._counted_s = -LEAST_S
        self._hz: dict[int, float] = {}
        self._next_hz_s = clock()

    def read(self, step: LastStep | None, affinity: Sequence[Sequence[int]], n_workers: int | None) -> Cores:
        """All cores with their part in a step; workers are listed separately unless each is pinned to a core."""
        self._count()
        self._look_at_clocks()
        worked = {} if step is None else _worked(step)
        pinned = [cores[0] for cores in affinity if len(cores) == 1]
        is_pinned = bool(pinned) and len(pinned) == len(affinity)
        of_core = {core: worked[worker] for worker, core in enumerate(pinned) if worker in worked} if is_pinned else {}
        cores = [self._core(core, of_core) for core in self._topology.cores]
        note = ""
        if worked and not is_pinned:
            cores += [CoreReading(worker, "", True, *worked[worker]) for worker in sorted(worked)]
            note = "workers have no core of their own here"
        return Cores(
            tuple(cores), None if step is None else len(step.workers), n_workers, step.seconds if step else None, note
        )

    def _core(self, core: Core, worked: dict[int, tuple[float, float | None]]) -> CoreReading:
        share, speed = next((worked[cpu] for cpu in core.cpus if cpu in worked), (None, None))
        busy = max((self._busy[cpu] for cpu in core.cpus if cpu in self._busy), default=None)
        hz = max((self._hz[cpu] for cpu in core.cpus if cpu in self._hz), default=None)
        return CoreReading(core.number, core.kind, False, share, speed, busy, hz)

    def _count(self) -> None:
        """Update the busy shares since the last count."""
        now = self._clock()
        if now - self._counted_s < LEAST_S:
            return
        self._counted_s = now
        for cpu, times in enumerate(psutil.cpu_times(percpu=True)):
            idle = times.idle + getattr(times, "iowait", 0.0)
            whole = sum(times) - getattr(times, "guest", 0.0) - getattr(times, "guest_nice", 0.0)
            idle_before, whole_before = self._counts.get(cpu, (idle, whole))
            if (passed := whole - whole_before) > 0:
                self._busy[cpu] = min(1.0, max(0.0, 1 - (idle - idle_before) / passed))
            self._counts[cpu] = idle, whole

    def _look_at_clocks(self) -> None:
        started = self._clock()
        if started < self._next_hz_s:
            return
        try:
            found = psutil.cpu_freq(percpu=True) or []
        except SENSOR_ERRORS:
            found = []
        if len(found) == psutil.cpu_count():  # some systems report one value for all cores
            self._hz = {cpu: 1e6 * each.current for cpu, each in enumerate(found) if each.current > 0}
        ended = self._clock()
        self._next_hz_s = ended + max(1.0, (ended - started) / LOOK_SHARE)


def _worked(step: LastStep) -> dict[int, tuple[float, float | None]]:
    """Share and speed of each worker in a step."""
    if not step.busy or not all(busy > 0 for busy in step.busy):
        return {worker: (share, None) for worker, share in zip(step.workers, step.shares, strict=True)}
    rates = [share / busy for share, busy in zip(step.shares, step.busy, strict=True)]
    fastest = max(rates) or 1.0
    return {
        worker: (share, rate / fastest) for worker, share, rate in zip(step.workers, step.shares, rates, strict=True)
    }
