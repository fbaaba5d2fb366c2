"""What a pass over k tokens costs: T(k), measured once for a plan and corrected while text is generated.

In: seconds of passes, or a curve that is assumed. Out: float32[MOST + 1] that the growth of trees reads; only ratios
matter. Corrections are by size class: a context that grows, or another program, changes small and large passes
differently. An assumed curve is never corrected.
"""

from __future__ import annotations

import math
import statistics
from bisect import bisect_right
from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from edgeinfer.engine.speculation.records import MOST

SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
"""Sizes that are measured, and that classes of sizes begin at."""
QUICK_S = 0.01
"""A pass over one token that takes longer is of a model that no cache holds: its passes need no warming up."""
WARMING, TIMED = 12, 5
"""Passes of each size of a quick model: caches take some to hold what the size reads, and keep it; then those timed."""
SLOW_TIMED = 2
HOPELESS = 9.0
"""Passes that cost so many times one token are not followed by larger ones: they cannot pay."""
LEARNING = 1 / 24
EVERY = 8
UNSEEN = 64
"""Passes without one of a single token after which one is due: everything is measured by it."""
"""Passes after which the curve is drawn anew."""
MOST_STRANGE = 0.5
"""How far, as a logarithm, one pass may be off and still count whole."""


def measure(run: Callable[[int], float], most: int = MOST) -> dict[int, float]:
    """Seconds of passes by size, each after others of its kind. `run(k)` runs one of k tokens and tells its seconds."""
    run(1)
    is_quick = run(1) < QUICK_S
    found: dict[int, float] = {}
    for size in SIZES:
        if size > most:
            break
        n_warming = 1 if not is_quick else WARMING if size == 1 else WARMING // 3
        times = [run(size) for _ in range(n_warming + (TIMED if is_quick else SLOW_TIMED))]
        found[size] = statistics.median(times[n_warming:])
        if found[size] > HOPELESS * found[1]:
            break
    return found


class Costs:
    """A curve of costs through points (tokens: cost); a pass over one token costs 1 unless a point says otherwise."""

    def __init__(self, points: Mapping[int, float], *, corrected: bool = True) -> None:
        self._base = _curve({1: 1.0, **points})
        self.curve: NDArray[np.float32] = self._base.astype(np.float32)
        self._corrected = corrected
        self._class_of = [max(0, bisect_right(SIZES, n_tokens) - 1) for n_tokens in range(MOST + 1)]
        self._level: float | None = None
        self._deviations = [0.0] * len(SIZES)
        self._used = [0.0] * len(SIZES)
        self._n_seen = 0
        self._n_since_single = 0

    @property
    def address(self) -> int:
        return int(self.curve.ctypes.data)

    @property
    def relative(self) -> list[float]:
        """Costs of 0 to MOST tokens, of one token: 1."""
        found: list[float] = (self.curve / self.curve[1]).tolist()
        return found

    @property
    def wants_single(self) -> bool:
        """Whether the next pass should be of one token, to know what that costs now."""
        return self._corrected and self._n_since_single >= UNSEEN

    def observe(self, n_tokens: int, seconds: float) -> None:
        """A pass took so long."""
        self._n_since_single = 0 if n_tokens == 1 else self._n_since_single + 1
        if not self._corrected or n_tokens > MOST or seconds <= 0:
            return
        strange = math.log(seconds / self._base[n_tokens])
        if self._level is None:
            self._level = strange
        kind, deviations, used = self._class_of[n_tokens], self._deviations, self._used
        off = min(max(strange - self._level - deviations[kind], -MOST_STRANGE), MOST_STRANGE)
        deviations[kind] += 2 * LEARNING * off
        used[:] = [share * (1 - LEARNING) for share in used]
        used[kind] += LEARNING
        common = sum(share * deviation for share, deviation in zip(used, deviations, strict=True)) / sum(used)
        self._level += common  # what all that are used have in common is no deviation
        for number, share in enumerate(used):
            if share:
                deviations[number] -= common
        self._n_seen += 1
        if self._n_seen % EVERY == 0:
            self.curve[:] = self._base * np.exp(np.array(deviations)[self._class_of])


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
