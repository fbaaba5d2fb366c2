"""A plan takes on the virtual clock what was predicted of it, and a slow device longer."""

from __future__ import annotations

import pytest

from edgeinfer.scheduling.cost.seconds import Pass
from edgeinfer.scheduling.machine.profile import Link
from edgeinfer.scheduling.placement.budgets import Budgets, Caching
from edgeinfer.scheduling.placement.planner import PlanningTask, plan
from edgeinfer.scheduling.simulate.executor import VirtualExecutor
from tests.unit.scheduling.models import model
from tests.unit.scheduling.profiles import GB, device, machine

WORK = model(6)
STEP = Pass(1, 64)
PROFILE = machine(device("gpu", 20 * GB, 1e12, Link(8 * GB, 8 * GB, 1e-7)), cpu=device(read=20 * GB, madds=1e12))


def test_the_plan_takes_on_the_clock_what_was_predicted():
    found = plan(PlanningTask(PROFILE, WORK, STEP, Caching(128), Budgets(1e12, {"gpu": 1e12})))
    seconds = {}
    for slowness in (1.0, 4.0):
        executor = VirtualExecutor(PROFILE, WORK, slowness={"gpu": slowness})
        seconds[slowness] = executor.wait(executor.submit(found.placement, STEP)).seconds
    assert seconds[1.0] == pytest.approx(found.seconds, rel=0.02)
    assert seconds[4.0] > seconds[1.0] * 1.5
