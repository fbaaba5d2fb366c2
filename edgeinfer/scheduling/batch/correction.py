"""Predictions of schedules corrected by what their passes made.

In: predicted and measured tokens a second, pass by pass. Out: a factor on the prediction of each schedule, the median
of its last ratios, and the schedule to run next: one that is not far behind by prediction is tried before it is judged.
Measures nothing itself.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Sequence

from edgeinfer.scheduling.batch.schedules import Prediction, Schedule

LAST = 9
"""Ratios that are kept; the median of so many shrugs off four outliers."""
ENOUGH = 4
"""Ratios after which a schedule counts as tried."""
NEAR = 0.5
"""Of the best prediction that makes another schedule worth a try: predictions of one differ from what it reaches by as
much."""


class Correction:
    """Measured over predicted tokens a second, by schedule."""

    def __init__(self) -> None:
        self._ratios: dict[Schedule, deque[float]] = {}

    def note(self, schedule: Schedule, predicted_tok_s: float, measured_tok_s: float) -> None:
        """Take in a pass; one of which nothing was predicted, or in which nothing moved, says nothing."""
        if predicted_tok_s > 0 and measured_tok_s > 0:
            self._ratios.setdefault(schedule, deque(maxlen=LAST)).append(measured_tok_s / predicted_tok_s)

    def factor(self, schedule: Schedule) -> float:
        """What a prediction of a schedule is to be multiplied by; 1 where it never ran."""
        return statistics.median(self._ratios[schedule]) if schedule in self._ratios else 1.0

    def best(self, predictions: Sequence[Prediction]) -> Prediction:
        """The best of several schedules that was not yet tried, if it is near enough; else the best, corrected."""
        most = max(each.tok_s for each in predictions)
        untried = [each for each in predictions if each.tok_s >= NEAR * most and not self._is_tried(each.schedule)]
        if untried:
            return max(untried, key=lambda each: each.tok_s)
        tried = [each for each in predictions if self._is_tried(each.schedule)]
        return max(tried, key=lambda each: each.tok_s * self.factor(each.schedule))

    def _is_tried(self, schedule: Schedule) -> bool:
        return len(self._ratios.get(schedule, ())) >= ENOUGH
