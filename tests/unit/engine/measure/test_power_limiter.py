"""The power limiter: policies that follow the machine, and rests that keep computing to its part of the time."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest

from edgeinfer.engine.llm import LLM
from edgeinfer.engine.loading import load
from edgeinfer.engine.measure.power import EnergyCounter, Sensors
from edgeinfer.engine.measure.power_limiter import LEAST_REST_S, NAP_S, PowerLimiter
from edgeinfer.scheduling.workers.governor import Condition, Governor
from edgeinfer.settings import Mode
from tests.unit.engine.measure.test_power import count, powercap


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
        time.sleep(0.1)  # workers spin for some milliseconds first
        before_s = time.process_time()
        time.sleep(0.5)
        assert time.process_time() - before_s < 0.1  # one spinning worker would use half a second
