"""Chooses the schedule of the next pass: the requested one, or the one predicted to make the most tokens.

In: how many sequences are in flight on either side and their cached tokens, and what passes made. Out: a `Prediction`,
corrected by measurements, recomputed every RECHECK passes and whenever the number of sequences changes. Runs nothing.
"""

from __future__ import annotations

from edgeinfer.engine.multi import AUTO
from edgeinfer.errors import BadSetting
from edgeinfer.scheduling.batch.costs import BatchCosts, SequenceGroup
from edgeinfer.scheduling.batch.schedules import (
    SCHEDULES,
    Correction,
    Prediction,
    accelerator_only,
    asymmetric_s,
    choose,
    overlap,
)
from edgeinfer.scheduling.batch.simulation import RECHECK

MOST_SPLITS = 64
"""About how many ways to split the offloaded sequences in two are tried."""


class Choosing:
    """Chooses before each pass. `costs`: None without predictions; a schedule must then be requested by name."""

    def __init__(self, costs: BatchCosts | None, schedule: str = AUTO) -> None:
        self.costs = costs
        self.use(schedule)
        self._groups = (0, 0)
        self._age = 0
        self._correction = Correction()

    def use(self, schedule: str) -> None:
        """Follow this schedule from now on. Raises BadSetting for an unknown one or one that cannot be predicted."""
        names: tuple[str, ...] = (AUTO, *SCHEDULES)
        if schedule not in names:
            raise BadSetting(f"{schedule} is no schedule of batches; there are: {', '.join(names)}")
        if self.costs is None and schedule == AUTO:
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
        if self.schedule == AUTO and self.costs is not None:
            found = self._best(self.costs, resident, offloaded)
            if found.n_offloaded or resident.n:
                return found
        name = "overlap" if not resident.n and self.schedule in (AUTO, "accelerator-only") else self.schedule
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
