"""Predictions of schedules corrected by what their passes made.

In: predicted and measured tokens a second, pass by pass. Out: a factor on the prediction of each schedule: the median
of its last ratios. A schedule that never ran is believed as far as the others are. Measures nothing itself.
"""

from __future__ import annotations

import statistics
from collections import deque

from edgeinfer.scheduling.batch.schedules import Schedule

LAST = 9
"""Ratios that are kept; the median of so many shrugs off four outliers."""


class Correction:
    """Measured over predicted tokens a second, by schedule."""

    def __init__(self) -> None:
        self._ratios: dict[Schedule, deque[float]] = {}

    def note(self, schedule: Schedule, predicted_tok_s: float, measured_tok_s: float) -> None:
        """Take in a pass; one of which nothing was predicted, or in which nothing moved, says nothing."""
        if predicted_tok_s > 0 and measured_tok_s > 0:
            self._ratios.setdefault(schedule, deque(maxlen=LAST)).append(measured_tok_s / predicted_tok_s)

    def factor(self, schedule: Schedule) -> float:
        """What a prediction of a schedule is to be multiplied by."""
        if schedule in self._ratios:
            return statistics.median(self._ratios[schedule])
        return statistics.median(map(statistics.median, self._ratios.values())) if self._ratios else 1.0
