"""Predicted throughput of many sequences on a CPU and an accelerator together, and on each of them alone.

In: profiles, a model's work, how many sequences fit where. Out: tokens per second by schedule, and sentences for the
user. Opens nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from edgeinfer.engine.run.staffing import DEPTH
from edgeinfer.scheduling.batch.costs import BatchCosts, SequenceGroup
from edgeinfer.scheduling.batch.schedules import Schedule, accelerator_only, asymmetric, overlap
from edgeinfer.scheduling.cost.seconds import Pass
from edgeinfer.scheduling.cost.work import ModelWork
from edgeinfer.scheduling.machine.profile import Profile
from edgeinfer.scheduling.placement.placement import all_on
from edgeinfer.scheduling.placement.step_time import step_time


@dataclass(frozen=True, slots=True)
class Expectation:
    """Tokens per second of `n_resident` and `n_offloaded` sequences with `depth` cached tokens each.

    `schedules`: of both devices together; `alone`: of all sequences on one device at full use.
    """

    n_resident: int
    n_offloaded: int
    depth: int
    schedules: Mapping[Schedule, float]
    alone: Mapping[str, float]

    @property
    def best(self) -> Schedule:
        """The schedule with the highest predicted throughput."""
        return max(self.schedules, key=lambda name: self.schedules[name])

    @property
    def best_alone(self) -> str:
        return max(self.alone, key=lambda name: self.alone[name])

    @property
    def prefers_one(self) -> bool:
        """Whether one device alone is predicted to beat both with the best schedule."""
        return self.alone[self.best_alone] > self.schedules[self.best]

    def refusal(self, accelerator: str) -> str:
        """The message for the user when one device runs alone."""
        return (
            f"cpu and {accelerator} are predicted to make {self.schedules[self.best]:.0f} tok/s of "
            f"{self.n_resident + self.n_offloaded} sequences by schedule {self.best}, and {self.best_alone} alone "
            f"{self.alone[self.best_alone]:.0f}: it runs on {self.best_alone} alone; --schedule apex uses both"
        )

    def notice(self, accelerator: str, schedule: str) -> str:
        """The message for the user at the start."""
        found = ", ".join(f"{name} {tok_s:.0f}" for name, tok_s in self.schedules.items())
        one = self.best_alone
        told = (
            f"room for {self.n_resident} whole contexts on {accelerator}, {self.n_offloaded} in memory; "
            f"schedule {schedule}, predicted at {self.depth} cached tokens: {found} tok/s"
        )
        if self.prefers_one:
            return f"{told}; {one} alone {self.alone[one]:.0f}, which is more: --device {one}"
        return f"{told}; {one} alone {self.alone[one]:.0f}"


def expected(
    costs: BatchCosts,
    alone: Mapping[str, Profile],
    work: ModelWork,
    kv: str,
    sequences: tuple[int, int],
    n_context: int,
) -> Expectation:
    """Predict for `sequences` (resident, offloaded). `alone`: the machine as each device has it to itself."""
    depth = min(DEPTH, n_context - 1)
    resident, offloaded = (SequenceGroup(n, n * depth) for n in sequences)
    predictions = (
        accelerator_only(costs, resident),
        asymmetric(costs, resident, offloaded),
        overlap(costs, resident, offloaded),
    )
    step = Pass(1, depth, n_sequences=max(1, sum(sequences)))
    seconds = {name: step_time(profile, work, all_on(work, name), step, kv).seconds for name, profile in alone.items()}
    tok_s = {name: step.n_sequences / found for name, found in seconds.items()}
    return Expectation(*sequences, depth, {each.schedule: each.tok_s for each in predictions}, tok_s)
