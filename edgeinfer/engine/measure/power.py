"""The machine's power as the system shows it: battery, temperature of the CPU, energy that was taken.

In: psutil, and the energy counters that Linux keeps in /sys/class/powercap (RAPL, which AMD's CPUs have too). Out: a
`Condition`, and joules; None for what the system does not tell. macOS and Windows tell of the battery only, a virtual
machine mostly of nothing, and many systems let only root read energy. Knows no modes.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil

from edgeinfer.scheduling.workers.governor import Condition

POWERCAP = Path("/sys/class/powercap")
LOOK_S = 2.0
"""Between two looks at the sensors, at least;"""
LOOK_SHARE = 1 / 500
"""and no more of the time than this: on some laptops each temperature is a slow question to another chip."""
CPU_SENSORS = ("coretemp", "k10temp", "zenpower", "cpu_thermal", "cpu-thermal", "soc_thermal", "acpitz")
"""Drivers that tell the temperature of a CPU, the best first. The last one's is often that of the board."""
OFFSET_LABEL, TRUE_LABEL = "Tctl", "Tdie"
"""Where both are told, the first has an offset that is meant for fans."""
COLDEST_C, HOTTEST_C = 1.0, 125.0
"""What is outside is no temperature but a mistake of some firmware;"""
LEAST_LIMIT_C = 50.0
"""so is a lower limit."""
MICRO = 1e-6
SENSOR_ERRORS = (AttributeError, OSError, RuntimeError, ValueError)
"""What psutil raises where a system has no such sensors, or strange ones."""


class Sensors:
    """The condition of the machine, looked at only every LOOK_S or more seldom. `clock` gives seconds."""

    def __init__(
        self, read: Callable[[], Condition] | None = None, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        """`read`: what looks; None: `read_condition`."""
        self._read = read_condition if read is None else read
        self._clock = clock
        self._next_s = clock()
        self._condition = Condition()

    def condition(self) -> Condition:
        """The condition; the same object until the next look."""
        started = self._clock()
        if started >= self._next_s:
            self._condition = self._read()
            ended = self._clock()
            self._next_s = ended + max(LOOK_S, (ended - started) / LOOK_SHARE)
        return self._condition


def read_condition() -> Condition:
    """What psutil says of battery and temperature."""
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
    """Of the hottest place of the CPU, with the limits of that place."""
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
    """A temperature that can be one."""
    return float(value) if value is not None and least_c <= value <= HOTTEST_C else None


class EnergyCounter:
    """Joules taken by domains of a powercap tree, which count microjoules and begin anew at some number.

    To be read more often than that: it is minutes on a large machine.
    """

    def __init__(self, domains: Sequence[Path] = ()) -> None:
        """`domains`: folders; of none, nothing is known."""
        self._domains = tuple(domains)
        self._lock = threading.Lock()
        self._joules = 0.0
        self._last = self._read() if self._domains else None

    @classmethod
    def open(cls, root: Path = POWERCAP) -> EnergyCounter:
        """Of all CPU packages of the machine."""
        return cls(package_domains(root))

    def joules(self) -> float | None:
        """Joules since this counter was made, of whole packages whoever used them; None where it cannot be read."""
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
        """Microjoules and the most that are counted, by domain; a part of them would be a wrong sum."""
        try:
            return [(_number(each / "energy_uj"), _number(each / "max_energy_range_uj")) for each in self._domains]
        except (OSError, ValueError):
            return None


def package_domains(root: Path = POWERCAP) -> tuple[Path, ...]:
    """Folders that count each joule once: CPU packages, else the platform as a whole (psys), which includes them.

    What lies within a package (core, uncore) is counted with it, and the same packages seen another way
    (intel-rapl-mmio) are left out. Memory (dram) is apart, where it is counted at all.
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
