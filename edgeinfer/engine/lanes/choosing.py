"""Which of several devices run a model, and what each of them does: the plan, or why one of them does it alone.

In: a profile of the machine as the devices share it and as the CPU has it alone, the model's work, memory. Out: a
`Choice` with predicted seconds. Opens nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from edgeinfer.engine.lanes import AUTO
from edgeinfer.scheduling.budgets import Budgets, Caching
from edgeinfer.scheduling.cost import Pass
from edgeinfer.scheduling.machine_plan import MachinePlan, Task
from edgeinfer.scheduling.placement import Placement
from edgeinfer.scheduling.profile import CPU, Profile
from edgeinfer.scheduling.schedules import scheduled
from edgeinfer.scheduling.work import ModelWork

DEPTH = 512
"""Cached tokens of the decoding that is planned for."""


@dataclass(frozen=True, slots=True)
class Choice:
    """`plan` for the devices together, and the seconds a token takes on the CPU alone with all its cores."""

    plan: MachinePlan
    cpu_s: float

    @property
    def placement(self) -> Placement:
        return self.plan.placement

    @property
    def devices(self) -> tuple[str, ...]:
        """Devices that take part, in order of their first work."""
        return self.placement.devices

    @property
    def prefers_cpu(self) -> bool:
        """Whether the CPU alone is predicted to be at least as fast."""
        return self.cpu_s <= self.plan.seconds or self.devices == (CPU,)


def choose(
    together: Profile, machine: Profile, work: ModelWork, caching: Caching, budgets: Budgets, schedule: str = AUTO
) -> Choice:
    """Plan a model for the devices together. Raises DoesNotFit, UnknownKey for a schedule."""
    step = Pass(1, min(DEPTH, caching.n_context - 1))
    plan = scheduled(schedule, Task(together, work, step, caching, budgets))
    alone = scheduled("cpu", Task(machine, work, step, caching, Budgets(budgets.ram_bytes, {})))
    return Choice(plan, alone.seconds)
