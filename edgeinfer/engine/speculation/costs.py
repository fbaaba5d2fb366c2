"""The cost of a pass over k tokens: T(k), measured once per plan and corrected while text is generated.

In: seconds of passes, or an assumed curve. Out: float32[MOST + 1], which tree growth reads; only ratios matter. The
cost has one part for the tokens of a pass, and one for attention, which grows with the number of cached tokens.
Corrections apply to classes of sizes, and compare only consecutive passes, since other programs and clock changes
affect both alike. An assumed curve is never corrected.

A pass may read prompts too. These have to be read anyway, so what they add to a pass without drafts is not counted, and
a draft costs what it adds to the pass with them: nothing where that waits for the disk, as much as reading a token of a
prompt where it computes.
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

SIZES = (1, 2, 3, 4, 5, 8, 9, 12, 16, 24, 32, 48, 64)
"""Pass sizes that are measured, and at which classes of sizes begin: products of 4 and 8 tokens take little longer than
of fewer, so one token more is a step;"""
SLOW_SIZES = (1, 2, 4, 5, 8, 9, 16, 32, 64)
"""sizes that are measured for slow models,"""
STREAMED_SIZES = (1, 8, 16, 32, 64)
"""for models whose weights come from disk;"""
DEEP_SIZES = (1, 2, 4, 8, 16)
"""and sizes that are also measured with DEEP cached tokens."""
DEEP = 768
QUICK_S = 0.02
"""Seconds; if a pass over one token takes longer, the model fits in no cache, and warming up changes little."""
LOOKS = 3
"""Passes over one token that tell whether a model is quick."""
ROUNDS, FIRST_WARMING, WARMING = 3, 16, 2
"""For a quick model: rounds over all sizes; warm-up passes for the first size and for others. The caches need some
passes to hold what the model reads, and more after the largest size of the round before. Passes of more than LARGE
tokens are warmed up and measured less often: that is accurate enough.
"""
LARGE = 8
TIMED, LONG_S = 3, 0.15
"""Timed passes per size, whose median counts; one of a size that takes more than LONG_S seconds."""
HOPELESS = 9.0
"""If a pass costs this many times as much as one token, larger ones are not measured: they cannot pay."""
FIRST_WEIGHT, WEIGHT = 1 / 6, 1 / 100
"""Weight of two consecutive passes in the correction of their classes: at first, and in the long run."""
MOST_STRANGE = 0.5
"""Largest deviation of two passes, as a logarithm, that counts in full."""
EVERY = 16
"""Corrections after which the curve is recomputed."""
DEPTH_STEP = 32
"""Change in cached tokens after which the curve is recomputed."""
RECENT = 1 / 16
"""Weight of a new time in the moving average of seconds."""
FIRST_UNSEEN, UNSEEN = 8, 96
"""Passes after which one of a single token is due, since everything is measured against it. More often at first."""


@dataclass(frozen=True, slots=True)
class MeasuredCosts:
    """Seconds of passes by their tokens: at the start of a sequence, and after `depth` cached tokens if that is not 0.

    Both include passes of one token.
    """

    first: Mapping[int, float]
    depth: int
    deep: Mapping[int, float]


def measure(
    run: Callable[[int, int], float],
    most: int,
    deepest: int,
    *,
    streamed: bool = False,
    told: Callable[[int, int], None] = lambda done, total: None,
) -> MeasuredCosts:
    """Measure passes of up to `most` tokens, after up to `deepest` cached tokens.

    `run(k, depth)` runs a pass of k tokens after `depth` cached ones and returns its seconds. `streamed`: passes wait
    for weights from disk, so they are slow and take nearly the same time: few sizes are measured, with one pass each
    where it is slow. `told(done, total)` is called before each size.
    """
    run(1, 0)
    if streamed:
        sizes = [size for size in STREAMED_SIZES if size <= most]
        return MeasuredCosts(_seconds(run, sizes, 0, told, is_quick=False, streamed=True), 0, {})
    is_quick = min(run(1, 0) for _ in range(LOOKS)) < QUICK_S  # the machine may be busy
    depth = DEEP if deepest >= DEEP else 0
    sizes = [size for size in (SIZES if is_quick else SLOW_SIZES) if size <= most]
    first = _seconds(run, sizes, 0, told, is_quick=is_quick)
    deep_sizes = [size for size in DEEP_SIZES if size in first] if depth else []
    return MeasuredCosts(first, depth, _seconds(run, deep_sizes, depth, told, is_quick=is_quick))


def _seconds(
    run: Callable[[int, int], float],
    sizes: Sequence[int],
    depth: int,
    told: Callable[[int, int], None],
    *,
    is_quick: bool,
    streamed: bool = False,
) -> dict[int, float]:
    """Seconds by size, the median of the best round, as disturbances only add time.

    No size takes longer than a larger one.
    """
    times: dict[int, float] = {}
    for last in range(ROUNDS if is_quick else 1)[::-1]:
        for number, size in enumerate(sizes):
            if size > LARGE and last:
                break
            told(number, len(sizes))
            n_warming = FIRST_WARMING if is_quick and size == 1 else WARMING if is_quick and size <= LARGE else 1
            warming = [run(size, depth) for _ in range(n_warming)]
            if warming[-1] < LONG_S:
                spent = [run(size, depth) for _ in range(TIMED)]
            else:
                spent = warming[-1:] if streamed else [run(size, depth)]  # nothing is warmed up of what is read anew
            times[size] = min(statistics.median(spent), times.get(size, math.inf))
            if times[size] > HOPELESS * times[1]:
                break
    return _rising(times)


def best_of(one: MeasuredCosts, other: MeasuredCosts) -> MeasuredCosts:
    """The least seconds of two measurements, of which disturbances only add time; `other`'s depth counts."""

    def least(left: Mapping[int, float], right: Mapping[int, float]) -> dict[int, float]:
        sizes = sorted({*left, *right})
        return _rising({size: min(left.get(size, math.inf), right.get(size, math.inf)) for size in sizes})

    deep = least(one.deep, other.deep) if one.depth == other.depth else other.deep
    return MeasuredCosts(least(one.first, other.first), other.depth, deep)


def _rising(times: Mapping[int, float]) -> dict[int, float]:
    """Times by size, where no size takes longer than a larger one."""
    return {size: min(other_s for other, other_s in times.items() if other >= size) for size in times}


class Costs:
    """A cost curve through points (tokens: cost); a pass over one token costs 1 unless a point says otherwise."""

    def __init__(
        self, points: Mapping[int, float], per_cached: Mapping[int, float] | None = None, *, corrected: bool = True
    ) -> None:
        """`per_cached`: cost added per cached token, also as points; None: nothing."""
        self._known = bool(points)
        self._first = _curve({1: 1.0, **points})
        self._per_cached = _curve(per_cached) if per_cached else np.zeros_like(self._first)
        self._expected: list[float] = self._first.tolist()  # as measured, at this depth
        self.curve: NDArray[np.float32] = self._first.astype(np.float32)
        self._corrected = corrected
        self._class_of = [max(0, bisect_right(SIZES, n_tokens) - 1) for n_tokens in range(MOST + 1)]
        self._deviations = [0.0] * len(SIZES)
        self._seen = [0] * len(SIZES)
        self._depth, self._n_texts, self._single = 0, 1, float(self._first[1])
        self._n_prompt = 0
        self.unit_s = 0.0
        """Seconds that a cost of 1 takes; 0 before the first pass."""
        self._measured_s = 0.0
        self._n_corrections = 0
        self._n_since_single: dict[int, int] = {}
        """By number of texts, how many passes came since the last one of one token each;"""
        self._n_single: dict[int, int] = {}
        """and how many of these came after larger ones."""
        self._last: tuple[int, float] | None = None

    @classmethod
    def of(cls, measured: MeasuredCosts) -> Costs:
        """Costs from measured seconds."""
        single = measured.first[1]
        first = {size: seconds / single for size, seconds in measured.first.items()}
        per_cached = {
            size: max(0.0, seconds / single - first[size]) / measured.depth for size, seconds in measured.deep.items()
        }
        costs = cls(first, per_cached)
        costs._measured_s = single
        return costs

    @property
    def address(self) -> int:
        return int(self.curve.ctypes.data)

    def of_one(self, n_tokens: int) -> float:
        """The cost of a pass of `n_tokens` tokens relative to one token; 0 if nothing is known."""
        return self.curve.item(n_tokens) / self.curve.item(1) if self._known else 0.0

    @property
    def single_s(self) -> float | None:
        """Seconds of a one-token pass at the last depth, from passes of all sizes; None before the first pass."""
        return self.unit_s * self._single or None

    def seconds_after(self, n_cached: int) -> float:
        """Seconds of a one-token pass after so many cached tokens; 0 before the first pass."""
        return self.unit_s * float(self._first[1] + self._per_cached[1] * n_cached)

    def seconds_together(self, n_texts: int, n_cached: float) -> float:
        """Seconds of a pass of one token of each of so many texts, after so many cached tokens of each.

        Before the first pass as measured when costs were; 0 if nothing is known.
        """
        unit_s, n_tokens = self.unit_s or self._measured_s, min(n_texts, MOST)
        return unit_s * float(self._first[n_tokens] + self._per_cached[1] * n_texts * n_cached)

    @property
    def relative(self) -> list[float]:
        """Costs of 0 to MOST tokens relative to one token."""
        found: list[float] = (self.curve / self.curve[1]).tolist()
        return found

    @property
    def wants_single(self) -> bool:
        """Whether the next pass should be of one token a text, to measure its current cost."""
        if not self._corrected:
            return False
        n_compared = self._n_single.get(self._n_texts, 0)
        return self._n_since_single.get(self._n_texts, 0) >= min(FIRST_UNSEEN * (1 + 2 * n_compared), UNSEEN)

    def begin(self) -> None:
        """The next pass is not comparable with the last one."""
        self._last = None

    def move(self, n_cached: int, n_texts: int = 1, n_prompt: int = 0) -> None:
        """Set how many texts take part in the next pass, and how many tokens of each are cached on average.

        `n_prompt`: tokens of prompts that the pass reads beside them. Such a pass is not for `observe`.
        """
        n_prompt = min(n_prompt, MOST)
        if n_texts != self._n_texts:
            self._n_texts, self._last = n_texts, None
        elif abs(n_cached - self._depth) < DEPTH_STEP and n_prompt == self._n_prompt:
            return
        self._depth, self._n_prompt = n_cached, n_prompt
        self._draw()

    def observe(self, n_tokens: int, seconds: float) -> None:
        """Record that a pass of all `n_tokens` tokens of the texts given to `move` took `seconds`."""
        n_since = self._n_since_single.get(self._n_texts, 0)
        if n_tokens != self._n_texts:
            self._n_since_single[self._n_texts] = n_since + 1
        elif n_since:
            self._n_single[n_tokens] = self._n_single.get(n_tokens, 0) + 1
            self._n_since_single[n_tokens] = 0
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
        """Draw the curve anew. Each text reads its own cached tokens; drafts are taken to be those of one text."""
        per_cached, others = self._per_cached, self._n_texts - 1
        first = float(per_cached[1])
        attending = np.concatenate([np.full(others, first), per_cached])[: MOST + 1] + others * first
        expected = self._first + attending * self._depth
        self._expected, self._single = expected.tolist(), float(self._first[1]) + first * self._depth
        corrected = expected * np.exp(np.array(self._deviations)[self._class_of])
        self.curve[:] = _beside(corrected, self._n_texts, self._n_prompt) if self._n_prompt else corrected


def _beside(curve: NDArray[np.float64], n_texts: int, n_prompt: int) -> NDArray[np.float64]:
    """Costs of passes that also read prompts, without what these add to a pass of one token a text."""
    slope = max(0.0, float(curve[MOST] - curve[MOST // 2])) / (MOST - MOST // 2)
    longer = np.concatenate([curve, curve[MOST] + slope * np.arange(1, MOST + 1)])
    found, least = curve.copy(), min(n_texts, MOST)
    found[least:] = curve[least] + longer[least + n_prompt : MOST + 1 + n_prompt] - longer[least + n_prompt]
    return found


def _curve(points: Mapping[int, float]) -> NDArray[np.float64]:
    """Costs of 0 to MOST tokens, interpolated linearly between points and extrapolated from the last two."""
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
