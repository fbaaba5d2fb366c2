"""Power: sensors and energy counters on recorded and imagined machines; policies that follow the machine, and rests."""

from __future__ import annotations

import threading
import time
import types
from dataclasses import replace
from pathlib import Path
from typing import get_args

import psutil
import pytest

from edgeinfer.engine.llm import LLM
from edgeinfer.engine.loading import load
from edgeinfer.engine.measure import power
from edgeinfer.engine.measure.power import (
    LEAST_REST_S,
    NAP_S,
    EnergyCounter,
    PowerLimiter,
    Sensors,
    package_domains,
    read_condition,
)
from edgeinfer.scheduling.workers.governor import Condition, Governor
from edgeinfer.settings import Mode
from tests.waiting import rests

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


class World:
    """A machine and its time, for a power limiter."""

    def __init__(self, mode: Mode, energy: EnergyCounter | None = None) -> None:
        self.now_s = 10.0
        self.condition = Condition()
        self.naps: list[float] = []
        sensors = Sensors(lambda: replace(self.condition), self.clock)
        governor = Governor(mode, ("performance",) * 4)
        self.power_limiter = PowerLimiter(governor, sensors, energy or EnergyCounter(), self.clock, self.sleep)
        self.stopped = threading.Event()

    def clock(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        assert 0 < seconds <= NAP_S
        self.naps.append(seconds)
        self.now_s += seconds

    def work(self, seconds: float) -> None:
        """A pass, after the rest that is due."""
        self.power_limiter.rest(self.stopped)
        started_s = self.now_s
        self.now_s += seconds
        self.power_limiter.worked(started_s)


@pytest.mark.parametrize("pass_s", [0.001, 0.03, 0.7])
def test_computing_takes_its_part_of_the_time(pass_s: float) -> None:
    world = World("quiet")
    n_passes = round(20 / pass_s)
    for _ in range(n_passes):
        world.work(pass_s)
    spent_s = world.now_s - 10.0
    assert n_passes * pass_s / spent_s == pytest.approx(world.power_limiter.policy.duty, rel=0.03)
    assert min(sum(world.naps), LEAST_REST_S) == LEAST_REST_S


def test_rests_are_long_enough_for_workers_to_sleep() -> None:
    world = World("quiet")
    rests = []
    for _ in range(500):
        before = sum(world.naps)
        world.work(0.004)
        if (rest := sum(world.naps) - before) > 0:
            rests.append(rest)
    assert min(rests) >= LEAST_REST_S - 1e-9


def test_rests_of_several_answers_add_up() -> None:
    """Two that take turns: the second one begins when the first has ended, without a rest, and both are made up for."""
    world = World("quiet")
    for _ in range(200):
        world.power_limiter.rest(world.stopped)
        for _ in range(2):
            started_s = world.now_s
            world.now_s += 0.1
            world.power_limiter.worked(started_s)
    assert 200 * 0.2 / (world.now_s - 10) == pytest.approx(0.6, rel=0.03)


def test_time_that_nobody_wanted_is_a_rest() -> None:
    world = World("quiet")
    world.work(0.3)
    world.now_s += 0.3
    world.work(0.3)
    assert not world.naps


def test_a_stop_ends_a_rest_and_full_time_has_none() -> None:
    world = World("quiet")
    world.work(10.0)
    world.stopped.set()
    world.work(0.1)
    assert not world.naps
    always = World("max")
    for _ in range(100):
        always.work(0.5)
    assert not always.naps


def test_policies_follow_the_machine_and_stay_the_same_object_otherwise() -> None:
    world = World("balanced")
    first = world.power_limiter.policy
    world.condition = Condition(plugged_in=True, temperature_c=50)
    world.now_s += 5
    world.power_limiter.look()
    assert world.power_limiter.policy is first
    world.condition = Condition(plugged_in=False, battery_percent=10)
    world.power_limiter.look()
    assert world.power_limiter.policy is first  # it is not time yet
    world.now_s += 5
    world.power_limiter.look()
    assert world.power_limiter.policy.most_workers == 2


def test_energy_is_read_often_enough_to_see_it_begin_anew(tmp_path: Path) -> None:
    root = powercap(tmp_path, {"intel-rapl:0": "package-0"})
    (root / "intel-rapl:0" / "max_energy_range_uj").write_text("9999999\n")
    world = World("max", EnergyCounter.open(root))
    for number in range(2, 40):
        count(root, "intel-rapl:0", number * 1_000_000 % 10_000_000)
        world.now_s += 3
        world.power_limiter.look()
    assert world.power_limiter.joules() == pytest.approx(38)


MESSAGES = [{"role": "user", "content": "the rain in the inn and the rain in the inn and"}]


def answer(llm: LLM, temperature: float) -> tuple[int, ...]:
    stream = llm.chat(MESSAGES, temperature=temperature, seed=3, max_tokens=40)
    stream.read()
    assert stream.stats is not None
    assert stream.stats.policy.startswith(f"{llm.info.mode}: ")
    return stream.tokens


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_no_mode_changes_a_token(tiny_model: Path, home: Path, temperature: float) -> None:
    answers = set()
    for mode in get_args(Mode):
        with load(tiny_model, threads=2, mode=mode, verify_cost={2: 1.0, 64: 1.0}) as llm:
            assert llm.telemetry.policy.most_workers == (2 if mode in ("max", "balanced") else 1)
            answers.add(answer(llm, temperature))
    assert len(answers) == 1


def test_the_least_drafted_mode_drafts_least(tiny_model: Path, home: Path) -> None:
    steps = []
    for mode in ("max", "battery", "quiet"):
        with load(tiny_model, threads=1, mode=mode, spec=16) as llm:
            stream = llm.chat(MESSAGES, temperature=0, max_tokens=40)
            stream.read()
            assert stream.stats is not None
            assert stream.stats.draft is not None
            steps.append(sum(each.proposed for each in stream.stats.draft.sources.values()) / stream.stats.steps)
            assert steps[-1] <= llm.telemetry.policy.most_drafted - 1
    assert steps == sorted(steps, reverse=True)


def test_nothing_computes_between_answers(tiny_model: Path, home: Path) -> None:
    with load(tiny_model, threads=2, mode="quiet") as llm:
        answer(llm, 0.0)
        assert rests(time.process_time)
