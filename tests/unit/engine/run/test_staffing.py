"""Workers from what was asked for, from the topology, and from the plans of a profile."""

from __future__ import annotations

from dataclasses import replace

import pytest

from edgeinfer.engine.run.staffing import CorePlans, core_plans, device_options, worker_kinds
from edgeinfer.scheduling.machine.catalogue import machine_profile
from edgeinfer.scheduling.machine.topology import Core, Node, Topology
from edgeinfer.scheduling.workers.core_plan import CorePlan
from tests.unit.scheduling.cost.test_cost import model

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
