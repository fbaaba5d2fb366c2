"""Chooses the schedule of many sequences on a CPU and an accelerator: the one predicted to make the most tokens.

In: profiles, a model's work, how many sequences fit where; then for the next pass how many sequences are in flight on
either side and their cached tokens, and what passes made. Out: tokens per second by schedule, together and on each
device alone, with sentences for the user; a `Prediction`, corrected by measurements, recomputed every RECHECK passes
and whenever the number of sequences changes. Opens and runs nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from edgeinfer.engine.run.executor import AUTO_SCHEDULE
from edgeinfer.engine.run.workers import DEPTH
from edgeinfer.errors import BadSetting
from edgeinfer.scheduling.batch.costs import BatchCosts, SequenceGroup
from edgeinfer.scheduling.batch.schedules import (
    SCHEDULES,
    Correction,
    Prediction,
    Schedule,
    accelerator_only,
    asymmetric,
    asymmetric_s,
    choose,
    overlap,
)
from edgeinfer.scheduling.batch.simulation import RECHECK
from edgeinfer.scheduling.cost.seconds import Pass
from edgeinfer.scheduling.cost.work import ModelWork
from edgeinfer.scheduling.machine.profile import Profile
from edgeinfer.scheduling.placement.placement import all_on
from edgeinfer.scheduling.placement.step_time import step_time

MOST_SPLITS = 64
"""About how many ways to split the offloaded sequences in two are tried."""


class Choosing:
    """Chooses before each pass. `costs`: None without predictions; a schedule must then be requested by name."""

    def __init__(self, costs: BatchCosts | None, schedule: str = AUTO_SCHEDULE) -> None:
        self.costs = costs
        self.use(schedule)
        self._groups = (0, 0)
        self._age = 0
        self._correction = Correction()

    def use(self, schedule: str) -> None:
        """Follow this schedule from now on. Raises BadSetting for an unknown one or one that cannot be predicted."""
        names: tuple[str, ...] = (AUTO_SCHEDULE, *SCHEDULES)
        if schedule not in names:
            raise BadSetting(f"{schedule} is no schedule of batches; there are: {', '.join(names)}")
        if self.costs is None and schedule == AUTO_SCHEDULE:
            raise BadSetting("without rates of the machine no schedule can be predicted; name one")
        self.schedule = schedule
        self._last: Prediction | None = None

    def next(self, resident: SequenceGroup, offloaded: SequenceGroup) -> Prediction:
        """The next pass, over no more sequences than there are. Seconds are 0 without predictions."""
        if self._last is None or self._age >= RECHECK or self._groups != (resident.n, offloaded.n):
            self._last, self._age, self._groups = self.predicted(resident, offloaded), 0, (resident.n, offloaded.n)
        self._age += 1
        return self._last

    def learn(self, choice: Prediction, n_tokens: float, seconds: float) -> None:
        """Note what a pass made, in tokens; a token part of the way through the model counts as that fraction."""
        self._correction.note(choice.schedule, choice.tok_s, n_tokens / seconds)

    def predicted(self, resident: SequenceGroup, offloaded: SequenceGroup) -> Prediction:
        """A pass over these sequences by the requested schedule, or by the best one."""
        if self.schedule == AUTO_SCHEDULE and self.costs is not None:
            found = self._best(self.costs, resident, offloaded)
            if found.n_offloaded or resident.n:
                return found
        name = "overlap" if not resident.n and self.schedule in (AUTO_SCHEDULE, "accelerator-only") else self.schedule
        match name:
            case "accelerator-only":
                seconds = 0.0 if self.costs is None else accelerator_only(self.costs, resident).seconds
                return Prediction("accelerator-only", seconds, resident.n)
            case "asymmetric":
                return self._asymmetric(resident, offloaded)
            case _:
                if self.costs is not None:
                    return overlap(self.costs, resident, offloaded)
                return Prediction("overlap", 0.0, resident.n, offloaded.n)

    def _best(self, costs: BatchCosts, resident: SequenceGroup, offloaded: SequenceGroup) -> Prediction:
        """The simplest schedule that can run if only one side has sequences, else the best one known."""
        if not offloaded.n:
            return accelerator_only(costs, resident)
        names = SCHEDULES if resident.n else SCHEDULES[1:]
        return self._correction.best([choose(costs, resident, offloaded, (name,)) for name in names])

    def _asymmetric(self, resident: SequenceGroup, offloaded: SequenceGroup) -> Prediction:
        """All offloaded sequences take part, split into the two halves with the lowest total time."""
        costs = self.costs
        if costs is None:
            behind = (resident.n + offloaded.n) // 2
            return Prediction("asymmetric", 0.0, resident.n, offloaded.n, min(behind, offloaded.n), offloaded.n)
        sizes = {*range(0, offloaded.n, max(1, offloaded.n // MOST_SPLITS)), offloaded.n}
        seconds, behind = min((asymmetric_s(costs, resident, offloaded, n), n) for n in sizes)
        return Prediction("asymmetric", seconds, resident.n, offloaded.n, behind, offloaded.n)


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
