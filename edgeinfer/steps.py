"""How far a reported step is, and how long it will still take.

In: what a `Progress` was called with, and the seconds since the step began. Out: a share from 0 to 1, and seconds left
where they can be estimated. Compiling is a case of its own: nothing is done until the compiler has started, which takes
as long as many kernels. Shows nothing, measures no time itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable

Progress = Callable[[str, int, int], None]
"""Called with what is being done, how much is done and how much there is."""

COMPILING = "compiling for this CPU, once"
"""What is reported while kernels are compiled that no run before left in the cache."""
START_UNITS = 8
"""Starting the compiler takes as long as compiling so many kernels."""
UNIT_S = 0.7
"""Seconds of a kernel, assumed until one is done."""
LEAST_S = 3.0
"""An estimate is shown for nothing shorter: by then too little is known."""


def share_done(what: str, done: int, total: int, elapsed_s: float) -> float | None:
    """How much of a step is done, from 0 to 1; None where its size is unknown.

    While the compiler starts the share grows towards that of the start, and never beyond it.
    """
    if total <= 0:
        return None
    if not what.startswith(COMPILING):
        return min(1.0, done / total)
    started = START_UNITS if done else START_UNITS * (1 - math.exp(-elapsed_s / (START_UNITS * UNIT_S)))
    return min(1.0, (started + done) / (START_UNITS + total))


def seconds_left(what: str, done: int, total: int, elapsed_s: float) -> float | None:
    """Seconds until a step is done; None while nothing is known of its speed."""
    if total <= 0:
        return None
    if what.startswith(COMPILING) and not done:
        return max((START_UNITS + total) * UNIT_S - elapsed_s, total * UNIT_S)
    share = share_done(what, done, total, elapsed_s)
    if not done or not share or elapsed_s < LEAST_S:
        return None
    return elapsed_s * (1 - share) / share


def no_progress(what: str, done: int, total: int) -> None:
    """A Progress that shows nothing."""
