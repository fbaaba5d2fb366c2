"""What the machine does while a model runs, computed only on request.

In: a loaded model or none yet, and the numbers of its answers. Out: one frozen record for each part of the view. Any
thread may query it while the engine's own thread decodes: no engine lock is taken. Only `follow` and `time_stages` take
long.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import psutil

from edgeinfer.app.readings.cores import CoreWatch
from edgeinfer.app.readings.loaded import Loaded
from edgeinfer.app.readings.records import Cores, DraftingReading, Energy, MemoryReading, PlanStrip, Roofline
from edgeinfer.engine.measure.power import EnergyCounter, Sensors
from edgeinfer.scheduling.machine.topology import Topology, available_bytes, read_topology

if TYPE_CHECKING:
    from edgeinfer.engine.llm import LLM
    from edgeinfer.engine.scheduler.stats import Stats
    from edgeinfer.scheduling.machine.profile import Profile

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
