"""Heights of vertically stacked entries, and where each entry begins.

In: heights in lines, first estimated, later measured. Out: indices and line numbers, which are updated by `settle`.
Knows no entries.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from itertools import accumulate


class Heights:
    """Heights by the index of the entry, from 0."""

    def __init__(self) -> None:
        self._heights: list[int] = []
        self._is_measured: list[bool] = []
        self._ends: list[int] = []

    def guess_all(self, heights: Iterable[int]) -> None:
        """Start over with an estimated height for each entry."""
        self._heights = list(heights)
        self._is_measured = [False] * len(self._heights)

    def guess(self, height: int) -> None:
        """Append an entry with an estimated height."""
        self._heights.append(height)
        self._is_measured.append(False)

    def measure(self, place: int, height: int) -> None:
        """Set the measured height of an entry."""
        self._heights[place], self._is_measured[place] = height, True

    def settle(self) -> None:
        """Recompute where each entry begins."""
        self._ends = list(accumulate(self._heights))

    @property
    def total(self) -> int:
        """Total number of lines."""
        return self._ends[-1] if self._ends else 0

    def of(self, place: int) -> int:
        """Height of an entry."""
        return self._heights[place]

    def is_measured(self, place: int) -> bool:
        """Whether an entry's height has been measured."""
        return self._is_measured[place]

    def top(self, place: int) -> int:
        """The first line of an entry."""
        return self._ends[place - 1] if place else 0

    def end(self, place: int) -> int:
        """The line after an entry's last one."""
        return self._ends[place]

    def at(self, line: int) -> tuple[int, int]:
        """The entry at a line and the offset within it; lines past the end belong to the last entry."""
        place = min(bisect_right(self._ends, line), len(self._ends) - 1)
        return place, line - self.top(place)
