"""How many lines entries have that stand one under the other, and where each begins.

In: numbers of lines, guessed first and measured later. Out: places and lines. What was measured counts after `settle`.
Knows no entries.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from itertools import accumulate


class Heights:
    """By the places of entries, from 0."""

    def __init__(self) -> None:
        self._heights: list[int] = []
        self._is_measured: list[bool] = []
        self._ends: list[int] = []

    def guess_all(self, heights: Iterable[int]) -> None:
        """Begin anew, with what each entry has about."""
        self._heights = list(heights)
        self._is_measured = [False] * len(self._heights)

    def guess(self, height: int) -> None:
        """One more entry, which has about so many lines."""
        self._heights.append(height)
        self._is_measured.append(False)

    def measure(self, place: int, height: int) -> None:
        """An entry has so many lines."""
        self._heights[place], self._is_measured[place] = height, True

    def settle(self) -> None:
        """Count anew where each begins."""
        self._ends = list(accumulate(self._heights))

    @property
    def total(self) -> int:
        """Lines of all."""
        return self._ends[-1] if self._ends else 0

    def of(self, place: int) -> int:
        """Lines of an entry."""
        return self._heights[place]

    def is_measured(self, place: int) -> bool:
        """Whether they were counted."""
        return self._is_measured[place]

    def top(self, place: int) -> int:
        """The line where an entry begins."""
        return self._ends[place - 1] if place else 0

    def end(self, place: int) -> int:
        """The line after its last one."""
        return self._ends[place]

    def at(self, line: int) -> tuple[int, int]:
        """The entry at a line, the last one for lines after it, and which line of it that is."""
        place = min(bisect_right(self._ends, line), len(self._ends) - 1)
        return place, line - self.top(place)
