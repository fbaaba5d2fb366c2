"""Which of several devices run a model, and what each of them does: the plan, or why one of them does it alone.

In: a profile of the machine as the devices share it and as each has it alone, the model's work, memory. Out: a
`PlanChoice` with predicted answers: a prompt is read and tokens are decoded after it. Opens nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from edgeinfer.engine.multi import AUTO
from edgeinfer.scheduling.cost.seconds import Pass
from edgeinfer.scheduling.cost.work import ModelWork
from edgeinfer.scheduling.machine.profile import Profile
from edgeinfer.scheduling.placement.budgets import Budgets, Caching
from edgeinfer.scheduling.placement.machine_plan import MachinePlan, PlanningTask
from edgeinfer.scheduling.placement.placement import Placement, all_on
from edgeinfer.scheduling.placement.schedules import scheduled
from edgeinfer.scheduling.predict.predict import Predictor

N_PROMPT, N_DECODED = 512, 128
"""Tokens of the prompt and of the answer that devices are judged by, where the context has room for them."""


@dataclass(frozen=True, slots=True)
class PredictedTimes:
    """What an answer is predicted to take: reading its prompt, and each token of it."""

    prompt_s: float
    token_s: float
    n_decoded: int

    @property
    def seconds(self) -> float:
        return self.prompt_s + self.n_decoded * self.token_s


@dataclass(frozen=True, slots=True)
class PlanChoice:
    """`plan` for the devices together, and an answer by them and by each of them alone with all it can use."""

    plan: MachinePlan
    together: PredictedTimes
    alone: Mapping[str, PredictedTimes]

    @property
    def placement(self) -> Placement:
        return self.plan.placement

    @property
    def devices(self) -> tuple[str, ...]:
        """Devices that take part, in order of their first work."""
        return self.placement.devices

    @property
    def best_alone(self) -> str:
        """The device that is predicted to answer first alone."""
        return min(self.alone, key=lambda name: self.alone[name].seconds)

    @property
    def prefers_one(self) -> bool:
        """Whether one device alone is predicted to answer at least as soon as all together."""
        return self.alone[self.best_alone].seconds <= self.together.seconds


def choose(
    together: Profile,
    alone: Mapping[str, Profile],
    work: ModelWork,
    caching: Caching,
    budgets: Budgets,
    schedule: str = AUTO,
) -> PlanChoice:
    """Plan a model for the devices together. `alone`: the machine as each device has it to itself, the cpu too.

    Raises DoesNotFit, UnknownKey for a schedule.
    """
    step = Pass(1, _n_prompt(caching))
    plan = scheduled(schedule, PlanningTask(together, work, step, caching, budgets))
    answers = {name: _answer(profile, work, all_on(work, name), caching) for name, profile in alone.items()}
    return PlanChoice(plan, _answer(together, work, plan.placement, caching), answers)


def _n_prompt(caching: Caching) -> int:
    return max(1, min(N_PROMPT, caching.n_context - 1))


def _answer(profile: Profile, work: ModelWork, placement: Placement, caching: Caching) -> PredictedTimes:
    n_prompt = _n_prompt(caching)
    n_decoded = max(1, min(N_DECODED, caching.n_context - n_prompt))
    predictor = Predictor(profile, work, caching.kv, placement)
    return PredictedTimes(predictor.prompt_s(n_prompt), predictor.decode_s(n_decoded, n_prompt) / n_decoded, n_decoded)
