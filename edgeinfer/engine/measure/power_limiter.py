"""The power limiter applies what the governor currently allows: a limit on workers, and rests for a share of the time.

In: sensors, read between passes, and when passes began and ended. Out: a `PowerPolicy` for work splits and drafts, and
rests. One for all models on a device. Knows no models, tokens or kernels.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Protocol

from edgeinfer.engine.measure.power import EnergyCounter, Sensors
from edgeinfer.scheduling.machine.topology import CoreKind
from edgeinfer.scheduling.workers.governor import Condition, Governor
from edgeinfer.settings import Mode

LEAST_REST_S = 0.05
"""Rests accumulate until they are this long: workers spin for some milliseconds before they sleep."""
NAP_S = 0.025
"""A rest is a series of naps, because a signal handler must not set an event that its own thread waits for."""


class Stopping(Protocol):
    """Whether no more passes are wanted."""

    def is_set(self) -> bool: ...


class PowerLimiter:
    """Applies a governor's policies, pass by pass. `clock` returns seconds, `sleep` takes them.

    `rest` and `joules` may be called by several threads, the other methods by one at a time.
    """

    def __init__(
        self,
        governor: Governor,
        sensors: Sensors,
        energy: EnergyCounter,
        clock: Callable[[], float] = time.perf_counter,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._governor = governor
        self._sensors = sensors
        self._energy = energy
        self._clock = clock
        self._sleep = sleep
        self._condition = sensors.condition()
        self.policy = governor.policy(self._condition)
        self._rested_s = clock()

    @classmethod
    def of_machine(cls, mode: Mode, kinds: Sequence[CoreKind]) -> PowerLimiter:
        """A mode on this machine, for workers on cores of these kinds."""
        return cls(Governor(mode, kinds), Sensors(), EnergyCounter.open())

    @classmethod
    def free(cls, n_workers: int) -> PowerLimiter:
        """No limits and no sensors: for measurements and tests."""
        kinds: list[CoreKind] = ["performance"] * n_workers
        return cls(Governor("max", kinds), Sensors(Condition), EnergyCounter())

    def look(self) -> None:
        """Before each pass: read the machine's condition if it is time to do so."""
        condition = self._sensors.condition()
        if condition is not self._condition:
            self._condition = condition
            policy = self._governor.policy(condition)
            self._energy.joules()  # so that no counter wraps around unnoticed
            if policy != self.policy:
                self.policy = policy

    def rest(self, stopped: Stopping) -> None:
        """Sleep if rest is due; returns early if `stopped`."""
        left_s = self._rested_s - self._clock()
        if left_s < LEAST_REST_S:
            return
        while left_s > 0 and not stopped.is_set():
            self._sleep(min(left_s, NAP_S))
            left_s = self._rested_s - self._clock()

    def worked(self, started_s: float) -> None:
        """Note the end of a pass that began then. Only one runs at a time, so rests of several answers add up."""
        duty = self.policy.duty
        if duty < 1:
            self._rested_s = max(self._rested_s, started_s) + (self._clock() - started_s) / duty

    def joules(self) -> float | None:
        """As `EnergyCounter.joules`."""
        return self._energy.joules()
