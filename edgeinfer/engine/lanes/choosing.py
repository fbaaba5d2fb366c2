"""Which of several devices run a model, and what each of them does: the plan, or why one of them does it alone.

In: a profile of the machine as the devices share it and as each has it alone, the model's work, memory. Out: a
`Choice` with predicted seconds. Opens nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from edgeinfer.engine.lanes import AUTO
from edgeinfer.scheduling.budgets import Budgets, Caching
from edgeinfer.scheduling.cost import Pass
from edgeinfer.scheduling.machine_plan import MachinePlan, Task
from edgeinfer.scheduling.placement import Placement, all_on
from edgeinfer.scheduling.profile import Profile
from edgeinfer.scheduling.schedules import scheduled
from edgeinfer.scheduling.step_time import step_time
from edgeinfer.scheduling.work import ModelWork

DEPTH = 512
"""Cached tokens of the decoding that is planned for."""


@dataclass(frozen=True, slots=True)
class Choice:
    """`plan` for the devices together, and the seconds a token takes on each of them alone with all it can use."""

    plan: MachinePlan
    alone_s: Mapping[str, float]

    @property
    def placement(self) -> Placement:
        return self.plan.placement

    @property
    def devices(self) -> tuple[str, ...]:
        """Devices that take part, in order of their first work."""
        return self.placement.devices

    @property
    def best_alone(self) -> str:
        """The device that is predicted to be fastest alone."""
        return min(self.alone_s, key=lambda name: self.alone_s[name])

    @property
    def prefers_one(self) -> bool:
        """Whether one device alone is predicted to be at least as fast as all together."""
        return self.alone_s[self.best_alone] <= self.plan.seconds


def choose(
    together: Profile,
    alone: Mapping[str, Profile],
    work: ModelWork,
    caching: Caching,
    budgets: Budgets,
    schedule: str = AUTO,
) -> Choice:
    """Plan a model for the devices together. `alone`: the machine as each device has it to itself, the cpu too.

    Raises DoesNotFit, UnknownKey for a schedule.
    """
    step = Pass(1, min(DEPTH, caching.n_context - 1))
    plan = scheduled(schedule, Task(together, work, step, caching, budgets))
    seconds = {}
    for name, profile in alone.items():
        seconds[name] = step_time(profile, work, all_on(work, name), step, caching.kv).seconds
    return Choice(plan, seconds)
