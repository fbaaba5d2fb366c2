"""Sensors and energy counters, on recorded and imagined machines."""

from __future__ import annotations

import types
from pathlib import Path

import psutil
import pytest

from edgeinfer.engine.measure import power
from edgeinfer.engine.measure.power import EnergyCounter, Sensors, package_domains, read_condition
from edgeinfer.scheduling.workers.governor import Condition

WRAP = 262_143_328_850
ZONES = {
    "intel-rapl:0": "package-0",
    "intel-rapl:0:0": "core",
    "intel-rapl:0:1": "uncore",
    "intel-rapl:0:2": "dram",
    "intel-rapl:1": "psys",
    "intel-rapl-mmio:0": "package-0",
}


def powercap(root: Path, zones: dict[str, str]) -> Path:
    """A tree like /sys/class/powercap, where all zones lie side by side."""
    for zone, name in zones.items():
        (root / zone).mkdir(parents=True)
        (root / zone / "name").write_text(f"{name}\n")
        (root / zone / "max_energy_range_uj").write_text(f"{WRAP}\n")
        count(root, zone, 1_000_000)
    (root / "intel-rapl").mkdir(parents=True)
    return root


def count(root: Path, zone: str, microjoules: int) -> None:
    (root / zone / "energy_uj").write_text(f"{microjoules}\n")


@pytest.mark.parametrize(
    ("zones", "counted"),
    [
        (ZONES, ["intel-rapl:0"]),
        ({"intel-rapl:0": "package-0", "intel-rapl:1": "package-1", "intel-rapl:1:0": "dram"}, [0, 1]),
        ({"intel-rapl:0": "package-0-die-0", "intel-rapl:1": "package-0-die-1"}, [0, 1]),
        ({"intel-rapl:0": "psys", "intel-rapl:0:0": "core"}, [0]),
        ({"intel-rapl:0": "dram"}, []),
        ({}, []),
    ],
)
def test_each_joule_is_counted_once(tmp_path: Path, zones: dict[str, str], counted: list[str | int]) -> None:
    root = powercap(tmp_path, zones)
    wanted = [zone if isinstance(zone, str) else f"intel-rapl:{zone}" for zone in counted]
    assert [path.name for path in package_domains(root)] == wanted


def test_joules_are_summed_over_packages_from_zero_on(tmp_path: Path) -> None:
    root = powercap(tmp_path, {"intel-rapl:0": "package-0", "intel-rapl:1": "package-1", "intel-rapl:0:0": "core"})
    counter = EnergyCounter.open(root)
    assert counter.joules() == 0
    count(root, "intel-rapl:0", 3_500_000)
    count(root, "intel-rapl:1", 2_000_000)
    count(root, "intel-rapl:0:0", 9_000_000)
    assert counter.joules() == pytest.approx(3.5)
    assert counter.joules() == pytest.approx(3.5)


def test_a_counter_that_begins_anew_goes_on(tmp_path: Path) -> None:
    root = powercap(tmp_path, {"intel-rapl:0": "package-0"})
    count(root, "intel-rapl:0", WRAP - 999_999)
    counter = EnergyCounter.open(root)
    for _ in range(2):
        count(root, "intel-rapl:0", 1_000_000)
        assert counter.joules() == pytest.approx(2.0)
    count(root, "intel-rapl:0", 500_000)
    assert counter.joules() == pytest.approx(2.0 + (WRAP + 1 - 500_000) * 1e-6)


@pytest.mark.parametrize("broken", ["energy_uj", "max_energy_range_uj"])
def test_what_cannot_be_read_is_unknown_and_never_half_a_sum(tmp_path: Path, broken: str) -> None:
    root = powercap(tmp_path, {"intel-rapl:0": "package-0", "intel-rapl:1": "package-1"})
    counter = EnergyCounter.open(root)
    (root / "intel-rapl:1" / broken).unlink()  # root alone may read it on most systems: the same OSError
    assert EnergyCounter.open(root).joules() is None
    assert counter.joules() is None
    assert counter.joules() is None
    (root / "intel-rapl:0" / broken).write_text("?\n")
    assert EnergyCounter.open(root).joules() is None


def test_a_machine_without_counters_tells_nothing(tmp_path: Path) -> None:
    assert EnergyCounter.open(tmp_path / "missing").joules() is None
    assert EnergyCounter().joules() is None


def place(
    label: str, current: float, high: float | None = None, critical: float | None = None
) -> types.SimpleNamespace:
    return types.SimpleNamespace(label=label, current=current, high=high, critical=critical)


def condition_of(
    monkeypatch: pytest.MonkeyPatch, sensors: dict[str, list[types.SimpleNamespace]], battery: object = None
) -> Condition:
    """What is read on a Linux machine with these sensors."""
    monkeypatch.setattr(power.sys, "platform", "linux")
    monkeypatch.setattr(psutil, "sensors_temperatures", lambda: sensors, raising=False)
    monkeypatch.setattr(psutil, "sensors_battery", lambda: battery, raising=False)
    return read_condition()


@pytest.mark.parametrize(
    ("sensors", "read"),
    [
        ({}, (None, None, None)),
        ({"nvme": [place("Composite", 70.0, 80, 85)], "iwlwifi_1": [place("", 50.0)]}, (None, None, None)),
        (
            {
                "acpitz": [place("", 99.0)],
                "coretemp": [place("Package id 0", 61.0, 100, 100), place("Core 0", 63.0, 99, 101)],
            },
            (63.0, 99.0, 101.0),
        ),
        ({"k10temp": [place("Tctl", 85.0), place("Tdie", 65.0), place("Tccd1", 60.0)]}, (65.0, None, None)),
        ({"k10temp": [place("Tctl", 62.5), place("Tccd1", 60.0)]}, (62.5, None, None)),
        ({"cpu_thermal": [place("", 48.3, None, 110.0)]}, (48.3, None, 110.0)),
        ({"acpitz": [place("", 27.8, 0.0, 65261.85)]}, (27.8, None, None)),
        ({"coretemp": [place("Core 0", -273.1)], "acpitz": [place("", 40.0)]}, (40.0, None, None)),
        ({"coretemp": [place("Core 0", float("nan"))]}, (None, None, None)),
    ],
)
def test_the_temperature_is_that_of_the_hottest_place_of_the_cpu(
    monkeypatch: pytest.MonkeyPatch,
    sensors: dict[str, list[types.SimpleNamespace]],
    read: tuple[float | None, float | None, float | None],
) -> None:
    assert condition_of(monkeypatch, sensors) == Condition(None, None, *read)


@pytest.mark.parametrize(
    ("battery", "read"),
    [
        (None, (None, None)),
        (types.SimpleNamespace(percent=41, power_plugged=False), (False, 41.0)),
        (types.SimpleNamespace(percent=99.5, power_plugged=True), (True, 99.5)),
        (types.SimpleNamespace(percent=255, power_plugged=None), (None, None)),
    ],
)
def test_the_battery(monkeypatch: pytest.MonkeyPatch, battery: object, read: tuple[bool | None, float | None]) -> None:
    assert condition_of(monkeypatch, {}, battery) == Condition(*read)


@pytest.mark.parametrize("error", [AttributeError, FileNotFoundError, RuntimeError, ValueError])
def test_sensors_that_fail_are_no_sensors(monkeypatch: pytest.MonkeyPatch, error: type[Exception]) -> None:
    def fail() -> None:
        raise error

    monkeypatch.setattr(power.sys, "platform", "linux")
    monkeypatch.setattr(psutil, "sensors_temperatures", fail, raising=False)
    monkeypatch.setattr(psutil, "sensors_battery", fail, raising=False)
    assert read_condition() == Condition()


def test_this_machine_can_be_asked() -> None:
    read_condition()
    EnergyCounter.open().joules()


class Watch:
    """A clock that a test moves; looking at its sensors takes a while."""

    def __init__(self, look_s: float) -> None:
        self.now_s = 50.0
        self.look_s = look_s
        self.n_looks = 0

    def read(self) -> Condition:
        self.now_s += self.look_s
        self.n_looks += 1
        return Condition(temperature_c=40.0 + self.n_looks)


@pytest.mark.parametrize(("look_s", "n_looks"), [(0.0, 50), (0.001, 50), (0.02, 10), (0.2, 1)])
def test_looks_are_rare_and_rarer_where_they_are_slow(look_s: float, n_looks: int) -> None:
    watch = Watch(look_s)
    sensors = Sensors(watch.read, lambda: watch.now_s)
    started_s, seen = watch.now_s, []
    while watch.now_s < started_s + 100:
        seen.append(sensors.condition())
        watch.now_s += 0.01
    assert watch.n_looks == pytest.approx(n_looks, abs=1)
    assert len({id(condition) for condition in seen}) == watch.n_looks
    assert watch.n_looks * look_s <= 100 / 500 + look_s
