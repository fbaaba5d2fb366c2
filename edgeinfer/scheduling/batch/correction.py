"""Corrects predictions of schedules by the measured throughput of their passes.

In: predicted and measured tokens per second, pass by pass. Out: a factor on the prediction of each schedule, the median
of its last ratios, and the schedule to run next: one whose prediction is close to the best is tried before it is
judged. Measures nothing itself.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Sequence

from edgeinfer.scheduling.batch.schedules import Prediction, Schedule

LAST = 9
"""Ratios kept; their median tolerates four outliers."""
ENOUGH = 4
"""Ratios after which a schedule counts as tried."""
NEAR = 0.5
"""Share of the best prediction at which another schedule is worth a try: predictions are off by as much."""


class Correction:
    """Measured over predicted tokens per second, by schedule."""

    def __init__(self) -> None:
        self._ratios: dict[Schedule, deque[float]] = {}

    def note(self, schedule: Schedule, predicted_tok_s: float, measured_tok_s: float) -> None:
        """Note a pass; one without a prediction, or in which nothing advanced, is ignored."""
        if predicted_tok_s > 0 and measured_tok_s > 0:
            self._ratios.setdefault(schedule, deque(maxlen=LAST)).append(measured_tok_s / predicted_tok_s)

    def factor(self, schedule: Schedule) -> float:
        """The factor on a schedule's prediction; 1 if it never ran."""
        return statistics.median(self._ratios[schedule]) if schedule in self._ratios else 1.0

    def best(self, predictions: Sequence[Prediction]) -> Prediction:
        """The best untried schedule if it is close enough to the best; else the best by corrected prediction."""
        most = max(each.tok_s for each in predictions)
        untried = [each for each in predictions if each.tok_s >= NEAR * most and not self._is_tried(each.schedule)]
        if untried:
            return max(untried, key=lambda each: each.tok_s)
        tried = [each for each in predictions if self._is_tried(each.schedule)]
        return max(tried, key=lambda each: each.tok_s * self.factor(each.schedule))

    def _is_tried(self, schedule: Schedule) -> bool:
        return len(self._ratios.get(schedule, ())) >= ENOUGH
