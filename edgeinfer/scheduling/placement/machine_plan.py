"""A planning task on a machine, and its plan: a placement with its predicted time and memory.

In: a machine, a model, a kind of pass, KV caches, budgets; a placement. Out: a `MachinePlan`, if it keeps within the
budgets. Chooses nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from edgeinfer.scheduling.cost.seconds import Pass
from edgeinfer.scheduling.cost.work import ModelWork
from edgeinfer.scheduling.machine.profile import Profile
from edgeinfer.scheduling.placement.budgets import Budgets, Caching, Usage, fits, usage_of
from edgeinfer.scheduling.placement.placement import Placement
from edgeinfer.scheduling.placement.step_time import PassTime, step_time


@dataclass(frozen=True, slots=True)
class PlanningTask:
    """The task: passes like `step` of a model on a machine, with KV caches of a size within budgets."""

    profile: Profile
    work: ModelWork
    step: Pass
    caching: Caching
    budgets: Budgets


@dataclass(frozen=True, slots=True)
class MachinePlan:
    """A placement with the seconds of a pass and the bytes it takes; `schedule` names how it was made."""

    schedule: str
    placement: Placement
    time: PassTime
    usage: Usage

    @property
    def seconds(self) -> float:
        return self.time.seconds


def decode_step(caching: Caching, n_cached: int | None = None) -> Pass:
    """One token of each sequence, with this many cached ones (None: half of the context)."""
    depth = caching.n_context // 2 if n_cached is None else n_cached
    return Pass(1, depth, 1, caching.n_sequences)


def timed_plan(schedule: str, task: PlanningTask, placement: Placement) -> MachinePlan | None:
    """The plan of a placement; None if it exceeds a budget."""
    usage = usage_of(task.work, placement, task.caching)
    if not fits(usage, task.budgets):
        return None
    time = step_time(task.profile, task.work, placement, task.step, task.caching.kv)
    return MachinePlan(schedule, placement, time, usage)
