"""Progress of a reported step, and an estimate of the time left.

In: the arguments of a `Progress` call, and the seconds since the step began. Out: a share from 0 to 1, and the seconds
left where they can be estimated. Compiling is a special case: nothing counts as done until the compiler has started,
which takes as long as compiling many kernels. Displays nothing and measures no time itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable

Progress = Callable[[str, int, int], None]
"""Called with what is being done, how much is done and how much there is."""

READING_IMAGES = "reading images"
"""Reported before each part of an image is encoded; whoever is told may raise to stop."""
READING_SOUND = "reading sound"
"""The same for sound."""
READING_MEDIA = (READING_IMAGES, READING_SOUND)
COMPILING = "compiling for this CPU, once"
"""Reported while compiling kernels that no earlier run left in the cache."""
DETAIL = " · "
"""Between a step's name and what changes while it lasts: "measuring · decode, run 3 of 5" goes on with run 4."""
START_UNITS = 8
"""Starting the compiler takes as long as compiling this many kernels."""
UNIT_S = 0.7
"""Seconds to compile one kernel, assumed until one is done."""
LEAST_S = 3.0
"""Steps shorter than this get no estimate: too little is known by then."""


def share_done(what: str, done: int, total: int, elapsed_s: float) -> float | None:
    """Share of a step that is done, from 0 to 1; None if its size is unknown.

    While the compiler starts, the share grows towards that of the start-up and never exceeds it.
    """
    if total <= 0:
        return None
    if not what.startswith(COMPILING):
        return min(1.0, done / total)
    started = START_UNITS if done else START_UNITS * (1 - math.exp(-elapsed_s / (START_UNITS * UNIT_S)))
    return min(1.0, (started + done) / (START_UNITS + total))


def seconds_left(what: str, done: int, total: int, elapsed_s: float, first: int = 0) -> float | None:
    """Seconds until a step is done; None while its speed is unknown. `first`: what was done when it began."""
    if total <= 0:
        return None
    if what.startswith(COMPILING) and not done:
        return max((START_UNITS + total) * UNIT_S - elapsed_s, total * UNIT_S)
    if done <= first or elapsed_s < LEAST_S:
        return None
    if what.startswith(COMPILING):
        share = share_done(what, done, total, elapsed_s) or 1.0
        return elapsed_s * (1 - share) / share
    return elapsed_s * max(0, total - done) / (done - first)


def no_progress(what: str, done: int, total: int) -> None:
    """A Progress that shows nothing."""
