"""Workers from options, topology and a profile's plans; work splits before each step, idle cores while some rest."""

from __future__ import annotations

import types
from collections.abc import Sequence
from dataclasses import replace

import psutil
import pytest

from edgeinfer.backends.base import WHOLE, DeviceOptions, Timing, WorkSplit
from edgeinfer.backends.capabilities import LaneCapabilities
from edgeinfer.engine.measure.power import EnergyCounter, PowerLimiter, Sensors
from edgeinfer.engine.run import workers
from edgeinfer.engine.run.executor import Executor
from edgeinfer.engine.run.workers import Adaptation, CorePlans, core_plans, device_options, worker_kinds
from edgeinfer.graph.step import Floats, Step
from edgeinfer.scheduling.machine.catalogue import machine_profile
from edgeinfer.scheduling.machine.topology import Core, Node, Topology
from edgeinfer.scheduling.workers.core_plan import CorePlan
from edgeinfer.scheduling.workers.governor import Condition, Governor, PowerPolicy
from tests.unit.engine.lane import SlotDevice, SlotLane
from tests.unit.engine.run.test_executor import LIMITS, chain, feed
from tests.unit.scheduling.cost.test_cost import model
from tests.unit.scheduling.shared_machine import Machine

CORES = tuple(
    Core((number,), "performance" if number < 4 else "efficiency", 0, 0, number, 0, None) for number in range(8)
)
HYBRID = Topology(CORES, (Node(0, tuple(range(8)), 16 << 30, None, ()),), 8, None, False, 0, 0, 16 << 30, 8 << 30)
PLANS = CorePlans(CorePlan((0, 1), (0.5, 0.5), 1.0), CorePlan((0, 1, 4), (0.4, 0.4, 0.2), 1.0))


def test_a_plan_gives_each_kind_of_pass_its_own_cores():
    options = device_options(HYBRID, plans=PLANS)
    assert (options.n_workers, options.cores, options.pins) == (3, (0, 1, 4), True)
    assert options.decode_shares == (0.5, 0.5, 0.0)
    assert options.prefill_shares == (0.4, 0.4, 0.2)
    assert worker_kinds(options, HYBRID) == ("performance", "performance", "efficiency")


def test_what_a_person_asked_for_goes_before_a_plan():
    assert device_options(HYBRID, cores=(5, 6), plans=PLANS).cores == (5, 6)
    asked = device_options(HYBRID, threads=2, plans=PLANS)
    assert (asked.n_workers, asked.cores, asked.decode_shares) == (2, HYBRID.workers(), ())


@pytest.mark.parametrize(("quota", "pins", "n_workers"), [(None, True, 8), (2.0, False, 2), (8.0, True, 8)])
def test_in_a_container_with_less_time_than_cores_nobody_is_pinned(
    quota: float | None, pins: bool, n_workers: int
) -> None:
    options = device_options(replace(HYBRID, quota=quota))
    assert (options.pins, options.n_workers) == (pins, n_workers)


def test_plans_of_a_machine_take_cores_that_it_has():
    cpu = machine_profile("rtx4060-laptop").cpu
    plans = core_plans(cpu, model())
    assert plans is not None
    assert set(plans.cores) <= {core.number for core in cpu.cores}
    for plan in (plans.decode, plans.prefill):
        assert sum(plans.shares(plan)) == pytest.approx(1)
    assert core_plans(replace(cpu, cores=()), model()) is None


def test_cores_of_several_nodes_are_told_to_the_device():
    cores = tuple(replace(core, node=core.number // 4) for core in CORES)
    two = replace(HYBRID, cores=cores)
    assert device_options(two).n_nodes == 2
    assert device_options(two, cores=(4, 5)).n_nodes == 1
    assert device_options(two, plans=PLANS).n_nodes == 2


class StaffedLane(SlotLane):
    """A slot lane whose steps take what a simulated machine says."""

    def __init__(self, machine: Machine) -> None:
        super().__init__(LIMITS.n_pages)
        self.machine = machine
        self.n_workers = len(machine.speeds)
        self.work_split = WorkSplit.even(self.n_workers)
        self.work_splits: list[WorkSplit] = []
        self._timing = Timing(0.0, (0.0,) * self.n_workers)

    @property
    def capabilities(self) -> LaneCapabilities:
        return LaneCapabilities(workers=self)

    @property
    def affinity(self) -> tuple[tuple[int, ...], ...]:
        return ()

    @property
    def seconds(self) -> float:
        return self._timing.seconds

    @property
    def timing(self) -> Timing:
        return self._timing

    def run(self, step: Step) -> Floats:
        self.work_splits.append(self.work_split)
        seconds, busy = self.machine.step(
            self.work_split, len(step.batch.tokens)
        )  # a work split has an assignment's fields
        self._timing = Timing(seconds, tuple(busy))
        return super().run(step)


def decode(executor: Executor, n_tokens: int) -> None:
    """So many single tokens, in sequences as long as the limits allow."""
    for start in range(0, n_tokens, 100):
        sequence = executor.create()
        for token in range(min(100, n_tokens - start)):
            feed(executor, sequence, [token % 64])
        executor.free(sequence)


def test_shares_follow_the_speeds_of_the_workers() -> None:
    lane = StaffedLane(Machine((1.0, 0.5)))
    with Executor(SlotDevice(), lane, LIMITS, "model") as executor:
        decode(executor, 200)
    assert lane.work_splits[0] == WorkSplit.even(2)
    assert lane.work_splits[-1].cuts[1] / WHOLE == pytest.approx(2 / 3, rel=0.05)


def test_nothing_adapts_when_it_is_switched_off() -> None:
    lane = StaffedLane(Machine((1.0, 0.5), taken={0}))
    work_split = lane.work_split = WorkSplit((1,), (0, WHOLE))
    with Executor(SlotDevice(), lane, LIMITS, "model", DeviceOptions(adapts=False)) as executor:
        decode(executor, 50)
    assert all(used is work_split for used in lane.work_splits)


def test_a_single_worker_is_not_pinned() -> None:
    lane = StaffedLane(Machine((1.0,)))
    with Executor(SlotDevice(), lane, LIMITS, "model") as executor:
        decode(executor, 3)
    assert lane.work_splits == [WorkSplit((0,), (0, WHOLE), pinned=False)] * 3


def test_an_unchanged_work_split_is_the_same_object() -> None:
    """So that a worker pool need not look at it again."""
    lane = StaffedLane(Machine((1.0, 1.0)))
    with Executor(SlotDevice(), lane, LIMITS, "model") as executor:
        decode(executor, 10)
    assert all(work_split is lane.work_splits[1] for work_split in lane.work_splits[1:])


class Clock:
    """A clock that a test moves, and what the system's counters say at that time."""

    def __init__(self, n_cores: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 100.0
        self.idle_s = [0.0] * n_cores
        self.looks = 0
        monkeypatch.setattr(workers, "time", types.SimpleNamespace(perf_counter=lambda: self.now_s))
        monkeypatch.setattr(psutil, "cpu_times", self.cpu_times)

    def cpu_times(self, percpu: bool) -> list[types.SimpleNamespace]:
        assert percpu
        self.looks += 1
        return [types.SimpleNamespace(idle=idle) for idle in self.idle_s]

    def pass_time(self, seconds: float, idle_cores: set[int]) -> None:
        self.now_s += seconds
        self.idle_s = [idle + seconds * (core in idle_cores) for core, idle in enumerate(self.idle_s)]


class Adapting:
    """An adaptation whose lane takes what a machine says; counts the steps that the balance was told about."""

    def __init__(self, machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
        self.machine = machine
        self.lane = StaffedLane(machine)
        self.adaptation = Adaptation(self.lane, DeviceOptions())
        self.n_told, self.n_counted = 0, 0
        self._position = 0
        self._clock = Clock(len(machine.speeds), monkeypatch)
        self._record = self.adaptation._balance.record
        monkeypatch.setattr(self.adaptation._balance, "record", self._told)

    def _told(self, seconds: float, busy: Sequence[float], n_before: int) -> None:
        self.n_told += 1
        self.n_counted += 1 + n_before
        self._record(seconds, busy, n_before)

    def steps(self, count: int, n_tokens: int = 1, times: float = 1.0) -> list[int]:
        """Sizes of the worker pools of so many steps, which take `times` as long as usual."""
        self.n_told, self.n_counted, sizes = 0, 0, []
        for _ in range(count):
            self.adaptation.before(chain(0, self._position, [1] * n_tokens))
            seconds, busy = self.machine.step(self.lane.work_split, n_tokens)
            self.lane._timing = Timing(times * seconds, tuple(times * each for each in busy))
            n_free = int(self.machine.n_free(self.lane.work_split))  # a work split has an assignment's fields
            self._clock.pass_time(times * seconds, set(range(n_free)))
            self.adaptation.after()
            self._position += n_tokens
            sizes.append(len(self.lane.work_split.workers))
        return sizes


def policy_of(most_workers: int, ranks: tuple[int, ...] = ()) -> PowerPolicy:
    return PowerPolicy(most_workers, ranks, 1.0, 64, True, "a test")


def test_a_policy_counts_from_the_next_step_on_even_in_quiet_times(monkeypatch: pytest.MonkeyPatch) -> None:
    adapting = Adapting(Machine((1.0,) * 4), monkeypatch)
    assert set(adapting.steps(300)[-20:]) == {4}
    adapting.adaptation.limit(policy_of(3, (1, 0, 0, 0)))
    assert adapting.steps(1) == [3]
    assert adapting.lane.work_split.workers == (1, 2, 3)
    assert adapting.lane.work_split.pinned
    adapting.adaptation.limit(policy_of(4))
    assert adapting.steps(1) == [4]


def test_a_policy_that_limits_nothing_else_disturbs_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    adapting = Adapting(Machine((1.0, 1.0)), monkeypatch)
    adapting.steps(300)
    adapting.n_told = 0
    for _ in range(100):
        adapting.adaptation.limit(policy_of(2))  # a new object each time
        adapting.steps(1)
    assert adapting.lane.work_split is not None
    assert set(adapting.steps(100)) == {2}
    assert adapting.n_told <= 12


def test_an_executor_keeps_its_work_split_to_the_policy() -> None:
    lane = StaffedLane(Machine((1.0,) * 4))
    power_limiter = PowerLimiter(
        Governor("battery", ("performance",) * 2 + ("efficiency",) * 2), Sensors(Condition), EnergyCounter()
    )
    with Executor(SlotDevice(), lane, LIMITS, "model", power_limiter=power_limiter) as executor:
        assert executor.n_workers == 2
        decode(executor, 100)
    assert {work_split.workers for work_split in lane.work_splits if len(work_split.workers) == 2} == {(2, 3)}
    assert max(len(work_split.workers) for work_split in lane.work_splits) == 2


def test_quiet_steps_are_not_looked_at_but_dear_ones_are(monkeypatch: pytest.MonkeyPatch) -> None:
    adapting = Adapting(Machine((1.0, 1.0)), monkeypatch)
    adapting.steps(100)
    adapting.steps(320)
    assert adapting.n_told <= 40
    assert 300 <= adapting.n_counted <= 340
    adapting.steps(5, times=1.4)
    assert adapting.n_told == 5


def test_prompts_are_always_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    adapting = Adapting(Machine((1.0, 1.0)), monkeypatch)
    adapting.steps(100, n_tokens=512)
    assert adapting.n_told == 100


def test_passes_of_each_length_have_leaves_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    adapting = Adapting(Machine((1.0, 1.0)), monkeypatch)
    told = 0
    for _ in range(200):
        for n_tokens in (1, 3, 4):
            adapting.steps(1, n_tokens=n_tokens)
            told += adapting.n_told
    assert told < 200


def test_a_core_that_is_taken_is_noticed_while_lengths_change(monkeypatch: pytest.MonkeyPatch) -> None:
    adapting = Adapting(Machine((1.0, 1.0)), monkeypatch)
    for _ in range(100):
        for n_tokens in (1, 3, 4):
            adapting.steps(1, n_tokens=n_tokens)
    adapting.machine.taken = {1}
    for _ in range(40):
        sizes = [size for n_tokens in (1, 3, 4) for size in adapting.steps(1, n_tokens=n_tokens)]
    assert sizes == [1, 1, 1]


@pytest.mark.parametrize("core", [0, 1])
def test_a_core_that_is_taken_in_quiet_times_is_noticed(core: int, monkeypatch: pytest.MonkeyPatch) -> None:
    adapting = Adapting(Machine((1.0, 1.0)), monkeypatch)
    adapting.steps(300)
    adapting.machine.taken = {core}
    assert adapting.steps(64)[32:].count(1) >= 28
    adapting.machine.taken = set()
    assert adapting.steps(96)[64:].count(2) >= 31


@pytest.mark.parametrize("core", [0, 1])
def test_shares_follow_speeds_that_change_in_quiet_times(core: int, monkeypatch: pytest.MonkeyPatch) -> None:
    adapting = Adapting(Machine((1.0, 1.0)), monkeypatch)
    adapting.steps(300)
    adapting.machine.speeds = (1.5, 1.0) if core else (1.0, 1.5)
    adapting.steps(96)
    assert adapting.lane.work_split.cuts[1] / WHOLE == pytest.approx(0.6 if core else 0.4, abs=0.03)
    adapting.steps(300)
    adapting.machine.speeds = (1.0, 1.0)
    adapting.steps(64)
    assert adapting.lane.work_split.cuts[1] / WHOLE == pytest.approx(0.5, abs=0.03)


@pytest.mark.parametrize("core", [0, 1])
def test_a_freed_core_is_noticed(monkeypatch: pytest.MonkeyPatch, core: int) -> None:
    clock = Clock(4, monkeypatch)
    machine = Machine((1.0, 1.0))
    lane = StaffedLane(machine)
    adapting = Adaptation(lane, DeviceOptions(cores=(1, 3)))

    def steps(count: int, idle_cores: set[int]) -> list[int]:
        sizes = []
        for number in range(count):
            batch = chain(0, number, [1])
            adapting.before(batch)
            seconds, busy = machine.step(lane.work_split, 1)
            lane._timing = Timing(seconds, tuple(busy))
            clock.pass_time(seconds, idle_cores)
            adapting.after()
            sizes.append(len(lane.work_split.workers))
        return sizes

    steps(20, {0, 2})
    assert clock.looks == 0  # all workers work: nothing to ask
    machine.taken = {core}
    steps(200, {0, 2})  # idle, but not the worker pool's
    looks = clock.looks
    assert looks > 3
    assert looks < 30  # not at each step
    assert steps(300, {0, 2}).count(2) < 10
    machine.taken = set()
    assert set(steps(200, {0, 2, 3})[64:]) >= {2}
    assert len(lane.work_split.workers) == 2
