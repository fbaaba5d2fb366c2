"""Paces drawing: the more expensive it is, the less often it happens, so that it hardly slows the model.

In: the CPU time of the UI thread since the draw before the last. Out: seconds to wait. Reads no clock and sets no
timer.
"""

from __future__ import annotations

LEAST_S = 0.1
SHARE = 1 / 50
"""Maximum share of time spent on drawing."""
MOST_S = 0.6


def pause_s(cost_s: float) -> float:
    """Seconds between two draws, if the last one and the work around it took `cost_s` of CPU time."""
    return min(MOST_S, max(LEAST_S, cost_s / SHARE))
