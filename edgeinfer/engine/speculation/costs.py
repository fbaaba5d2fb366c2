"""What a pass over k tokens costs: T(k), measured once for a plan and corrected while text is generated.

In: seconds of passes, or a curve that is assumed. Out: float32[MOST + 1] that the growth of trees reads; only ratios
matter. A pass has a part for its tokens and one for what is cached before them, which grows with it: attention. What is
corrected are classes of sizes, and only by passes that follow one another: other programs, clocks and caches change
both alike. An assumed curve is never corrected.
"""

from __future__ import annotations

import math
import statistics
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgeinfer.engine.speculation.records import MOST

SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
"""Sizes that are measured, and that classes of sizes begin at;"""
SLOW_SIZES = (1, 2, 4, 8, 16, 32, 64)
"""those that are measured of slow models,"""
STREAMED_SIZES = (1, 8, 16, 32, 64)
"""those of models whose weights come from disk;"""
DEEP_SIZES = (1, 2, 4, 8, 16)
"""those that are measured with DEEP cached tokens as well."""
DEEP = 768
QUICK_S = 0.02
"""A pass over one token that takes longer is of a model that no cache holds: little warming up changes its passes."""
ROUNDS, FIRST_WARMING, WARMING, TIMED = 3, 16, 2, 3
"""Of a quick model: rounds over all sizes, and passes of a size in each: caches take some to hold what it reads, and
more after the largest of the round before. Passes of more than LARGE tokens are timed less often: they tell enough."""
LARGE = 8
HOPELESS = 9.0
"""Passes that cost so many times one token are not followed by larger ones: they cannot pay."""
FIRST_WEIGHT, WEIGHT = 1 / 6, 1 / 100
"""Of what two passes say about their classes: at first, and in the long run."""
MOST_STRANGE = 0.5
"""How far, as a logarithm, two passes may be off and still count whole."""
EVERY = 16
"""Corrections after which the curve is drawn anew."""
DEPTH_STEP = 32
"""Cached tokens that change the curve."""
RECENT = 1 / 16
"""Of a new time in the moving average of seconds."""
FIRST_UNSEEN, UNSEEN = 8, 96
"""Passes without one of a single token after which one is due: everything is measured by it. More often at first."""


@dataclass(frozen=True, slots=True)
class MeasuredCosts:
    """Seconds of passes by their tokens: at the start of a sequence, and behind `depth` cached tokens if that is not 0.

    Passes of one token are in both.
    """

    first: Mapping[int, float]
    depth: int
    deep: Mapping[int, float]


def measure(run: Callable[[int, int], float], most: int, deepest: int, *, streamed: bool = False) -> MeasuredCosts:
    """Seconds of passes of `most` tokens at most, `deepest` cached tokens before them at most.

    `run(k, depth)` runs one of k tokens after so many and tells its seconds. `streamed`: passes wait for weights, which
    makes them slow and nearly equal: few are measured.
    """
    run(1, 0)
    if streamed:
        return MeasuredCosts(_seconds(run, [size for size in STREAMED_SIZES if size <= most], 0, is_quick=False), 0, {})
    is_quick = run(1, 0) < QUICK_S
    depth = DEEP if deepest >= DEEP else 0
    first = _seconds(run, [size for size in (SIZES if is_quick else SLOW_SIZES) if size <= most], 0, is_quick)
    deep_sizes = [size for size in DEEP_SIZES if size in first] if depth else []
    return MeasuredCosts(first, depth, _seconds(run, deep_sizes, depth, is_quick))


def _seconds(run: Callable[[int, int], float], sizes: Sequence[int], depth: int, is_quick: bool) -> dict[int, float]:
    """The best round's median by size: what disturbs only ever adds. No size takes longer than a larger one."""
    times: dict[int, float] = {}
    for last in range(ROUNDS if is_quick else 1)[::-1]:
        for size in sizes:
            if size > LARGE and last:
                break
            n_warming = FIRST_WARMING if is_quick and size == 1 else WARMING if is_quick and size <= LARGE else 1
            spent = [run(size, depth) for _ in range(n_warming + (TIMED if is_quick and size <= LARGE else 1))]
            times[size] = min(statistics.median(spent[n_warming:]), times.get(size, math.inf))
            if times[size] > HOPELESS * times[1]:
                break
    return {size: min(other_s for other, other_s in times.items() if other >= size) for size in times}


class Costs:
    """A curve of costs through points (tokens: cost); a pass over one token costs 1 unless a point says otherwise."""

    def __init__(
        self, points: Mapping[int, float], per_cached: Mapping[int, float] | None = None, *, corrected: bool = True
    ) -> None:
        """`per_cached`: what a cached token adds to the cost, through points as well; None: nothing."""
        self._known = bool(points)
        self._first = _curve({1: 1.0, **points})
        self._per_cached = _curve(per_cached) if per_cached else np.zeros_like(self._first)
        self._expected: list[float] = self._first.tolist()  # by what was measured, at this depth
        self.curve: NDArray[np.float32] = self._first.astype(np.float32)
        self._corrected = corrected
        self._class_of = [max(0, bisect_right(SIZES, n_tokens) - 1) for n_tokens in range(MOST + 1)]
        self._deviations = [0.0] * len(SIZES)
        self._seen = [0] * len(SIZES)
        self._depth = 0
        self.unit_s = 0.0
        """What a cost of 1 takes, in seconds; 0 before any pass."""
        self._n_corrections = 0
        self._n_since_single = 0
        self._last: tuple[int, float] | None = None

    @classmethod
    def of(cls, measured: MeasuredCosts) -> Costs:
        """Costs as they were measured."""
        single = measured.first[1]
        first = {size: seconds / single for size, seconds in measured.first.items()}
        per_cached = {
            size: max(0.0, seconds / single - first[size]) / measured.depth for size, seconds in measured.deep.items()
        }
        return cls(first, per_cached)

    @property
    def address(self) -> int:
        return int(self.curve.ctypes.data)

    def of_one(self, n_tokens: int) -> float:
        """The cost of a pass of so many tokens, of one token: 1; 0 where nothing is known of it."""
        return self.curve.item(n_tokens) / self.curve.item(1) if self._known else 0.0

    @property
    def single_s(self) -> float | None:
        """Seconds of a pass of one token where the last one was, as passes of all sizes say; None before any."""
        return self.unit_s * self._expected[1] or None

    @property
    def relative(self) -> list[float]:
        """Costs of 0 to MOST tokens, of one token: 1."""
        found: list[float] = (self.curve / self.curve[1]).tolist()
        return found

    @property
    def wants_single(self) -> bool:
        """Whether the next pass should be of one token, to know what that costs now."""
        return self._corrected and self._n_since_single >= min(FIRST_UNSEEN * (1 + self._seen[0]), UNSEEN)

    def begin(self) -> None:
        """The next pass does not follow the last one."""
        self._last = None

    def move(self, n_cached: int) -> None:
        """The next pass comes after so many cached tokens."""
        if abs(n_cached - self._depth) >= DEPTH_STEP:
            self._depth = n_cached
            self._draw()

    def observe(self, n_tokens: int, seconds: float) -> None:
        """A pass took so long, where `move` said."""
        self._n_since_single = 0 if n_tokens == 1 else self._n_since_single + 1
        if n_tokens > MOST or seconds <= 0:
            return
        unit_s = seconds / self._expected[n_tokens]
        self.unit_s += (unit_s - self.unit_s) * (RECENT if self.unit_s else 1.0)
        if not self._corrected:
            return
        kind = self._class_of[n_tokens]
        strange = math.log(seconds / self._expected[n_tokens]) - self._deviations[kind]
        last, self._last = self._last, (kind, strange)
        if last is None or last[0] == kind:
            return
        off = min(max(strange - last[1], -MOST_STRANGE), MOST_STRANGE)
        for each, sign in ((kind, 0.5), (last[0], -0.5)):
            self._seen[each] += 1
            self._deviations[each] += sign * off * max(WEIGHT, FIRST_WEIGHT / (1 + FIRST_WEIGHT * self._seen[each]))
        self._n_corrections += 1
        if self._n_corrections % EVERY == 0:
            self._draw()

    def _draw(self) -> None:
        expected = self._first + self._per_cached * self._depth
        self._expected = expected.tolist()
        self.curve[:] = expected * np.exp(np.array(self._deviations)[self._class_of])


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
