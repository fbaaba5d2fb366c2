"""The planner's loop with no hardware: plan, run on a virtual clock, correct, plan again."""

from __future__ import annotations

import pytest

from edgeinfer.scheduling.cost.seconds import Pass
from edgeinfer.scheduling.machine.profile import Link, Profile
from edgeinfer.scheduling.placement.budgets import Budgets, Caching
from edgeinfer.scheduling.placement.placement import Placement
from edgeinfer.scheduling.placement.planner import PlanningTask, plan
from edgeinfer.scheduling.predict.corrections import Corrections, Observation
from edgeinfer.scheduling.simulate.executor import PassExecutor, PassReport, VirtualExecutor
from tests.unit.scheduling.models import model
from tests.unit.scheduling.profiles import GB, device, machine

WORK = model(6)
STEP = Pass(1, 64)
PROFILE = machine(device("gpu", 20 * GB, 1e12, Link(8 * GB, 8 * GB, 1e-7)), cpu=device(read=20 * GB, madds=1e12))
SLOWNESS = {"gpu": 4.0}


def _planned(profile: Profile) -> Placement:
    budgets = Budgets(1e12, {"gpu": 1e12})
    return plan(PlanningTask(profile, WORK, STEP, Caching(128), budgets)).placement


def _run(executor: PassExecutor, placement: Placement) -> PassReport:
    return executor.wait(executor.submit(placement, STEP))


def _rows(placement: Placement, name: str) -> int:
    return sum(
        part.n_rows for stage in placement.stages for parts in stage.products for part in parts if part.device == name
    )


def test_what_a_slow_device_took_makes_the_planner_move_its_rows():
    first = _planned(PROFILE)
    assert _rows(first, "gpu") > 0
    corrections = Corrections()
    for _ in range(12):
        predicted, measured = (_run(VirtualExecutor(PROFILE, WORK, slowness=how), first) for how in ({}, SLOWNESS))
        corrections.note(
            Observation("gpu", kind, predicted.spent_s[("gpu", kind)], measured.spent_s[("gpu", kind)])
            for kind in ("products", "attention", "others")
            if ("gpu", kind) in predicted.spent_s
        )
    assert corrections.factor("gpu", "products") == pytest.approx(4.0, rel=0.01)
    second = _planned(corrections.applied(PROFILE))
    assert _rows(second, "gpu") < _rows(first, "gpu")
    before, after = (_run(VirtualExecutor(PROFILE, WORK, slowness=SLOWNESS), each).seconds for each in (first, second))
    assert after < before / 1.5


def test_the_plan_takes_on_the_clock_what_was_predicted():
    found = plan(PlanningTask(PROFILE, WORK, STEP, Caching(128), Budgets(1e12, {"gpu": 1e12})))
    report = _run(VirtualExecutor(PROFILE, WORK), found.placement)
    assert report.seconds == pytest.approx(found.seconds, rel=0.02)
