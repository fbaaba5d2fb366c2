"""When to draw next: the more drawing costs, the rarer it is, so that it never costs the model more than a little.

In: what the screen's thread has used of a core since the drawing before the last, all told. Out: seconds to wait. Reads
no clock and sets no timer.
"""

from __future__ import annotations

LEAST_S = 0.1
SHARE = 1 / 50
"""Of the time, that drawing may take."""
MOST_S = 0.6


def pause_s(cost_s: float) -> float:
    """Seconds between two drawings, where the last one and what came with it took `cost_s` of a core."""
    return min(MOST_S, max(LEAST_S, cost_s / SHARE))
