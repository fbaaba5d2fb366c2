"""What the machine does while a model runs, computed only on request: its cores first, then everything else.

In: the system's counters, the topology, a loaded model or none yet, and the numbers of its answers. Out: one frozen
record for each part of the view. Any thread may query it while the engine's own thread decodes: no engine lock is
taken, and busy shares cover the time since the last reading. Only `follow` and `time_stages` take long.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import psutil

from edgeinfer.app.readings.loaded import Loaded
from edgeinfer.app.readings.records import (
    CoreReading,
    Cores,
    DraftingReading,
    Energy,
    MemoryReading,
    PlanStrip,
    Roofline,
)
from edgeinfer.engine.measure.power import SENSOR_ERRORS, EnergyCounter, Sensors
from edgeinfer.scheduling.machine.topology import Topology, available_bytes, read_topology

if TYPE_CHECKING:
    from edgeinfer.engine.llm import LLM
    from edgeinfer.engine.run.observed import LastStep
    from edgeinfer.engine.scheduler.stats import Stats
    from edgeinfer.scheduling.machine.profile import Profile
    from edgeinfer.scheduling.machine.topology import Core, Topology

LEAST_WATTS_S = 0.5
"""Shortest interval between two energy counts from which power is computed."""


class Readings:
    """Readings of this machine and of the model last given to `follow`. `clock` returns seconds."""

    def __init__(
        self,
        llm: LLM | None = None,
        *,
        topology: Topology | None = None,
        profile: Callable[[], Profile | None] | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """`profile`: finds the profile of this machine; None: use the saved one."""
        self._topology = read_topology() if topology is None else topology
        self._find_profile = _kept_profile if profile is None else profile
        self._clock = clock
        self._process = psutil.Process()
        self._watch = CoreWatch(self._topology, clock)
        self._sensors, self._energy = Sensors(clock=clock), EnergyCounter.open()
        self._counted: tuple[float, float | None] = clock(), self._energy.joules()
        self._watts: float | None = None
        self._loaded: Loaded | None = None
        if llm is not None:
            self.follow(llm)

    def follow(self, llm: LLM | None) -> None:
        """Use this model, or none, from now on. Reads the profile and computes the model's work: some ms."""
        self._loaded = None
        if llm is not None:
            self._loaded = Loaded.of(llm, self._find_profile())

    def answered(self, stats: Stats) -> None:
        """Record that an answer of the model has finished. May be called from any thread."""
        if self._loaded is not None:
            self._loaded.answered(stats)

    @property
    def can_time_stages(self) -> bool:
        """Whether `time_stages` could add information."""
        loaded = self._loaded
        return loaded is not None and loaded.work is not None and loaded.llm.telemetry.last_step is not None

    def time_stages(self) -> bool:
        """Measure a pass op by op unless the model is generating; returns whether it was done. May block the thread."""
        return self._loaded is not None and self._loaded.time_stages()

    def plan(self) -> PlanStrip:
        """Where a pass of one token spends its time."""
        return PlanStrip(note="no model is loaded yet") if self._loaded is None else self._loaded.plan()

    def roofline(self) -> Roofline:
        """The rates of the last answer and what the machine allows."""
        return Roofline(note="no model is loaded yet") if self._loaded is None else self._loaded.roofline()

    def drafting(self) -> DraftingReading:
        """Counts of drafted and accepted tokens."""
        return DraftingReading() if self._loaded is None else self._loaded.drafting()

    def cores(self) -> Cores:
        """All cores, with their part in the last step."""
        loaded = self._loaded
        if loaded is None:
            return self._watch.read(None, (), None)
        telemetry = loaded.llm.telemetry
        return self._watch.read(telemetry.last_step, telemetry.affinity, telemetry.n_workers)

    def memory(self) -> MemoryReading:
        """Memory of this process, the model and its cache."""
        free, total = available_bytes(), self._topology.total_bytes
        process = self._process.memory_info().rss
        if self._loaded is None:
            return MemoryReading(process, free, total)
        telemetry = self._loaded.llm.telemetry
        n_pages, n_free = telemetry.limits.n_pages, telemetry.n_free_pages
        held, page_tokens = telemetry.resident_bytes, telemetry.page_tokens
        kv, used = (self._loaded.kv_bytes(n) for n in (n_pages, n_pages - n_free))
        need = self._loaded.need
        buffers = None if need is None or not held else need.buffer_bytes
        weights = None if not held else held if kv is None else max(0, held - kv - (buffers or 0))
        n_used, n_most = (n_pages - n_free) * page_tokens, n_pages * page_tokens
        program = None if buffers is None else max(0, process - (weights or 0) - (used or 0) - buffers)
        return MemoryReading(
            process, free, total, weights, used, kv, n_used, n_most, self._loaded.stored, buffers, program
        )

    def taken(self) -> tuple[int, int | None]:
        """Bytes of this process and of the KV cache in use: the same values as in `memory`, at little cost."""
        loaded, process = self._loaded, self._process.memory_info().rss
        if loaded is None:
            return process, None
        return process, loaded.kv_bytes(loaded.llm.telemetry.limits.n_pages - loaded.llm.telemetry.n_free_pages)

    def energy(self) -> Energy:
        """Power used by computing, and how much of the machine may be used."""
        loaded, condition = self._loaded, self._sensors.condition()
        stats = None if loaded is None else loaded.stats
        return Energy(
            joules_per_token=None if stats is None else stats.joules_per_token,
            watts=self._power(),
            mode=None if loaded is None else loaded.llm.info.mode,
            policy=None if loaded is None else loaded.llm.telemetry.policy.reason,
            plugged_in=condition.plugged_in,
            battery_percent=condition.battery_percent,
            temperature_c=condition.temperature_c,
            high_c=condition.high_c,
        )

    def _power(self) -> float | None:
        now, (before, joules_before) = self._clock(), self._counted
        if joules_before is None:
            return None
        if now - before >= LEAST_WATTS_S:
            joules = self._energy.joules()
            self._watts = None if joules is None else (joules - joules_before) / (now - before)
            self._counted = now, joules
        return self._watts


def _kept_profile() -> Profile | None:
    from edgeinfer.app.plans.measured import kept_profile

    return kept_profile()


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
