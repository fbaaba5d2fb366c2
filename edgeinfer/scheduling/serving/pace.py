"""Measured time of passes by their number of tokens.

In: tokens and seconds of passes. Out: predicted seconds of a pass of any size. Passes become slower as contexts grow,
so recent ones count most. Knows no models and no answers.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right

SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
"""Lower bounds of the size classes."""
RECENT = 1 / 8
"""Weight of a new time in a class's moving average."""
MOST_STRANGE = 4.0
"""A pass that takes this many times the expected time was disturbed, and counts as exactly this many times."""


class Pace:
    """Seconds of passes by size; None before any was seen."""

    def __init__(self) -> None:
        self._seen: dict[int, tuple[float, float]] = {}  # by class: mean tokens and seconds
        self._sizes: list[float] = []
        self._seconds: list[float] = []
        self._is_drawn = True

    def observe(self, n_tokens: int, seconds: float) -> None:
        """Note the time of a pass."""
        kind = SIZES[bisect_right(SIZES, n_tokens) - 1]
        known = self._seen.get(kind)
        if known is None:
            self._seen[kind] = float(n_tokens), seconds
        else:
            mean, usual_s = known
            seconds = min(seconds, MOST_STRANGE * usual_s)
            self._seen[kind] = mean + (n_tokens - mean) * RECENT, usual_s + (seconds - usual_s) * RECENT
        self._is_drawn = False

    def _draw(self) -> None:
        points = sorted(self._seen.values())
        self._sizes = [size for size, _ in points]
        self._seconds = []
        for _, each_s in points:  # no size takes longer than a larger one
            self._seconds.append(max(each_s, self._seconds[-1] if self._seconds else 0.0))
        self._is_drawn = True

    def seconds(self, n_tokens: int) -> float | None:
        """Predicted seconds of a pass: linear between the sizes seen, proportional beyond them."""
        if not self._is_drawn:
            self._draw()
        sizes, seconds = self._sizes, self._seconds
        if not sizes:
            return None
        place = bisect_left(sizes, n_tokens)
        if place == len(sizes):
            return seconds[-1] * n_tokens / sizes[-1]
        if place == 0 or sizes[place] == n_tokens:
            return seconds[place]
        share = (n_tokens - sizes[place - 1]) / (sizes[place] - sizes[place - 1])
        return seconds[place - 1] + share * (seconds[place] - seconds[place - 1])

    def most_tokens(self, limit_s: float, at_most: int) -> int:
        """The most tokens, up to `at_most`, in a pass of `limit_s` seconds; `at_most` while nothing is known."""
        low, high = 0, at_most
        while low < high:
            middle = (low + high + 1) // 2
            seconds = self.seconds(middle)
            low, high = (middle, high) if seconds is None or seconds <= limit_s else (low, middle - 1)
        return low
