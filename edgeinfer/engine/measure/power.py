"""The machine's power state as the system reports it, and the limiter that applies what the governor allows.

In: psutil, the energy counters that Linux has in /sys/class/powercap (RAPL, also for AMD CPUs), and when passes began
and ended. Out: a `Condition`, and joules; None for what the system does not report. From a `PowerLimiter`, one for all
models on a device: a `PowerPolicy` for work splits and drafts, and rests for a share of the time. macOS and Windows
report only the battery, a virtual machine usually nothing, and many systems let only root read energy. Knows no models,
tokens or kernels.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

import psutil

from edgeinfer.scheduling.machine.topology import CoreKind
from edgeinfer.scheduling.workers.governor import Condition, Governor
from edgeinfer.settings import Mode

POWERCAP = Path("/sys/class/powercap")
LOOK_S = 2.0
"""Shortest time between two sensor readings,"""
LOOK_SHARE = 1 / 500
"""which may take at most this share of the time: on some laptops each temperature is a slow query to another chip."""
CPU_SENSORS = ("coretemp", "k10temp", "zenpower", "cpu_thermal", "cpu-thermal", "soc_thermal", "acpitz")
"""Drivers that report a CPU temperature, best first. The last one often reports the board's."""
OFFSET_LABEL, TRUE_LABEL = "Tctl", "Tdie"
"""If both are reported, the first has an offset meant for fans."""
COLDEST_C, HOTTEST_C = 1.0, 125.0
"""Temperatures outside this range are firmware errors;"""
LEAST_LIMIT_C = 50.0
"""so is a lower limit."""
MICRO = 1e-6
SENSOR_ERRORS = (AttributeError, OSError, RuntimeError, ValueError)
"""Errors psutil raises on systems without such sensors or with unusual ones."""
LEAST_REST_S = 0.05
"""Rests accumulate until they are this long: workers spin for some milliseconds before they sleep."""
NAP_S = 0.025
"""A rest is a series of naps, because a signal handler must not set an event that its own thread waits for."""


class Sensors:
    """The condition of the machine, read only every LOOK_S or less often. `clock` gives seconds."""

    def __init__(
        self, read: Callable[[], Condition] | None = None, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        """`read`: reads the condition; None: `read_condition`."""
        self._read = read_condition if read is None else read
        self._clock = clock
        self._next_s = clock()
        self._condition = Condition()

    def condition(self) -> Condition:
        """The condition; the same object until the next reading."""
        started = self._clock()
        if started >= self._next_s:
            self._condition = self._read()
            ended = self._clock()
            self._next_s = ended + max(LOOK_S, (ended - started) / LOOK_SHARE)
        return self._condition


def read_condition() -> Condition:
    """Battery and temperature as psutil reports them."""
    plugged_in, percent = _read_battery()
    temperature, high, critical = _read_temperature()
    return Condition(plugged_in, percent, temperature, high, critical)


def _read_battery() -> tuple[bool | None, float | None]:
    try:
        battery = psutil.sensors_battery()
    except SENSOR_ERRORS:
        return None, None
    if battery is None:
        return None, None
    percent = battery.percent
    return battery.power_plugged, float(percent) if percent is not None and 0 <= percent <= 100 else None


def _read_temperature() -> tuple[float | None, float | None, float | None]:
    """Temperature of the hottest sensor of the CPU, with that sensor's limits."""
    if not sys.platform.startswith(("linux", "freebsd")):
        return None, None, None
    try:
        sensors = psutil.sensors_temperatures()
    except SENSOR_ERRORS:
        return None, None, None
    for name in CPU_SENSORS:
        places = [place for place in sensors.get(name, ()) if _within(COLDEST_C, place.current) is not None]
        if any(place.label == TRUE_LABEL for place in places):
            places = [place for place in places if place.label != OFFSET_LABEL]
        if places:
            hottest = max(places, key=lambda place: float(place.current))
            return (
                float(hottest.current),
                _within(LEAST_LIMIT_C, hottest.high),
                _within(LEAST_LIMIT_C, hottest.critical),
            )
    return None, None, None


def _within(least_c: float, value: float | None) -> float | None:
    """A plausible temperature."""
    return float(value) if value is not None and least_c <= value <= HOTTEST_C else None


class EnergyCounter:
    """Energy used by domains of a powercap tree, in joules. Their counters count microjoules and wrap around.

    Must be read more often than they wrap: that takes minutes on a large machine.
    """

    def __init__(self, domains: Sequence[Path] = ()) -> None:
        """`domains`: folders; without any, nothing is known."""
        self._domains = tuple(domains)
        self._lock = threading.Lock()
        self._joules = 0.0
        self._last = self._read() if self._domains else None

    @classmethod
    def open(cls, root: Path = POWERCAP) -> EnergyCounter:
        """Counts all CPU packages of the machine."""
        return cls(package_domains(root))

    def joules(self) -> float | None:
        """Joules since this counter was made, of whole packages including other processes; None if unreadable."""
        if self._last is None:
            return None
        with self._lock:
            now = self._read()
            if now is not None and self._last is not None:
                self._joules += MICRO * sum(
                    (count - before) % (most + 1) for (count, most), (before, _) in zip(now, self._last, strict=True)
                )
            self._last = now
            return None if now is None else self._joules

    def _read(self) -> list[tuple[int, int]] | None:
        """Microjoules and the counter's maximum, by domain; all or nothing, because a partial sum would be wrong."""
        try:
            return [(_number(each / "energy_uj"), _number(each / "max_energy_range_uj")) for each in self._domains]
        except (OSError, ValueError):
            return None


def package_domains(root: Path = POWERCAP) -> tuple[Path, ...]:
    """Folders that count each joule once: CPU packages, else the platform as a whole (psys), which includes them.

    Subdomains of a package (core, uncore) are included in it, and duplicates of packages (intel-rapl-mmio) are left
    out. Memory (dram) is separate, where it is counted at all.
    """
    names: dict[Path, str] = {}
    try:
        for path in sorted(root.glob("intel-rapl:*")):
            if path.name.count(":") == 1:
                names[path] = (path / "name").read_text().strip()
    except OSError:
        return ()
    packages = tuple(path for path, name in names.items() if name.startswith("package"))
    return packages or tuple(path for path, name in names.items() if name == "psys")[:1]


def _number(path: Path) -> int:
    return int(path.read_text())


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
