"""What a pass over k tokens costs: T(k), measured once for a plan and corrected while text is generated.

In: seconds of passes, or a curve that is assumed. Out: float32[MOST + 1] that the growth of trees reads; only ratios
matter. Corrections are by size class: a context that grows, or another program, changes small and large passes
differently. An assumed curve is never corrected.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from edgeinfer.engine.speculation.records import MOST

SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
"""Sizes that are measured, and that classes of sizes begin at."""
ROUNDS = 3
QUICK_S = 0.03
"""A pass over one token that takes longer is measured in fewer rounds."""
HOPELESS = 12.0
"""Passes that cost so many times one token are not followed by larger ones: they cannot pay."""
LEARNING = 1 / 24
EVERY = 4
"""Passes after which the curve is drawn anew."""
MOST_STRANGE = 0.5
"""How far, as a logarithm, one pass may be off and still count whole."""


def measure(run: Callable[[int], float], most: int = MOST) -> dict[int, float]:
    """Seconds of passes by size. `run(k)` runs one pass over k tokens and tells its seconds."""
    run(1)
    first = run(1)
    n_rounds = ROUNDS if first < QUICK_S else 1
    times: dict[int, list[float]] = {}
    for _ in range(n_rounds):
        for size in SIZES:
            if size > most:
                break
            if size not in times:
                run(size)
            times.setdefault(size, []).append(run(size))
            if times[size][-1] > HOPELESS * min(times[1]):
                break
    return {size: statistics.median(seconds) for size, seconds in times.items()}


class Costs:
    """A curve of costs through points (tokens: cost); a pass over one token costs 1 unless a point says otherwise."""

    def __init__(self, points: Mapping[int, float], *, corrected: bool = True) -> None:
        self._base = _curve({1: 1.0, **points})
        self.curve: NDArray[np.float32] = self._base.astype(np.float32)
        self._corrected = corrected
        self._class_of = np.searchsorted(SIZES, np.arange(MOST + 1), side="right") - 1
        self._class_of[0] = 0
        self._level: float | None = None
        self._deviations = np.zeros(len(SIZES))
        self._n_seen = 0

    @property
    def address(self) -> int:
        return int(self.curve.ctypes.data)

    def observe(self, n_tokens: int, seconds: float) -> None:
        """A pass took so long."""
        if not self._corrected or n_tokens > MOST or seconds <= 0:
            return
        strange = math.log(seconds / self._base[n_tokens])
        if self._level is None:
            self._level = strange
        kind = self._class_of[n_tokens]
        off = min(max(strange - self._level - self._deviations[kind], -MOST_STRANGE), MOST_STRANGE)
        self._level += LEARNING * off
        self._deviations[kind] += LEARNING * off
        self._n_seen += 1
        if self._n_seen % EVERY == 0:
            self.curve[:] = self._base * np.exp(self._deviations[self._class_of])


def _curve(points: Mapping[int, float]) -> NDArray[np.float64]:
    """Costs of 0 to MOST tokens: straight between points, beyond them as between the last two."""
    sizes, places = np.arange(MOST + 1), sorted(points)
    values = np.interp(sizes, places, [points[place] for place in places])
    if len(places) > 1:
        last, before = places[-1], places[-2]
        slope = max(0.0, points[last] - points[before]) / (last - before)
    else:
        last, slope = places[-1], points[places[-1]]
    beyond = sizes > last
    values[beyond] = points[last] + slope * (sizes[beyond] - last)
    return np.asarray(values, np.float64)
