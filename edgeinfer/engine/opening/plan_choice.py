"""Chooses which of several devices run a model and what each does: a shared plan, or the reason to use just one.

In: profiles of the machine with the devices together and with each alone, the model's work, memory. Out: a `PlanChoice`
with predicted answers: a prompt is read, then tokens are decoded. Opens nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from edgeinfer.engine.run.executor import AUTO_SCHEDULE
from edgeinfer.scheduling.cost.seconds import Pass
from edgeinfer.scheduling.cost.work import ModelWork
from edgeinfer.scheduling.machine.profile import Profile
from edgeinfer.scheduling.placement.budgets import Budgets, Caching
from edgeinfer.scheduling.placement.machine_plan import MachinePlan, PlanningTask
from edgeinfer.scheduling.placement.placement import Placement, all_on
from edgeinfer.scheduling.placement.schedules import scheduled
from edgeinfer.scheduling.prediction import Predictor

N_PROMPT, N_DECODED = 512, 128
"""Tokens of the prompt and of the answer that devices are compared on, if the context has room for them."""


@dataclass(frozen=True, slots=True)
class PredictedTimes:
    """Predicted seconds of an answer: reading the prompt, and each decoded token."""

    prompt_s: float
    token_s: float
    n_decoded: int

    @property
    def seconds(self) -> float:
        return self.prompt_s + self.n_decoded * self.token_s


@dataclass(frozen=True, slots=True)
class PlanChoice:
    """The plan for the devices together, with the predicted answer of all and of each device alone at full use."""

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
        """The device with the fastest predicted answer when used alone."""
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
    schedule: str = AUTO_SCHEDULE,
) -> PlanChoice:
    """Plan a model for the devices together. `alone`: the machine as each device has it to itself, including the CPU.

    Raises DoesNotFit, and UnknownKey for an unknown schedule.
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
