"""When to draw next: the longer drawing takes, the rarer it is, so that it never costs the model more than a little.

In: what the last drawing took. Out: seconds to wait. Reads no clock and sets no timer.
"""

from __future__ import annotations

LEAST_S = 0.1
SHARE = 1 / 20
"""Of the time, that drawing may take."""
MOST_S = 1.0


def pause_s(cost_s: float) -> float:
    """Seconds between two drawings, of which the last one took `cost_s`."""
    return min(MOST_S, max(LEAST_S, cost_s / SHARE))
