"""The roofline in cells of a terminal: the roof in braille, a letter for each phase, axes with round figures.

In: a `readings.Roofline`, the cells there are. Out: lines. Both axes are logarithmic, with multiply-adds per second to
the left and multiply-adds per byte below. What the axes show is written out where there is room, and a very small plot
has no axes.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil, floor, log2

from edgeinfer.app.charts.axes import Axis, number
from edgeinfer.app.readings.records import Roofline
from edgeinfer.app.tui.widgets.machine_panels import MAIN, MUTED, OTHER, STRONG, Line, line

DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
"""Bits of a braille cell by row and column."""
BRAILLE = 0x2800
LETTERS = {"prefill": "P", "decode": "D"}
LEAST_DOUBLINGS_X, LEAST_DOUBLINGS_Y = 6, 4
GUTTER = 7
"""Cells to the left of the plot: a figure and the axis."""
LEAST_WITH_AXES, LEAST_WITH_WORDS = (28, 5), 9
"""Columns and rows from which on there are axes, and rows from which on they are named in lines of their own."""
UP, ACROSS, ACROSS_SHORT = "multiply-adds/s", "multiply-adds a byte", "a byte"
BETWEEN_MARKS = 2
"""Least rows between two figures of the axis."""


def plot_lines(roofline: Roofline, width: int, height: int) -> list[Line]:
    """The plot, with axes if there is room."""
    if width < LEAST_WITH_AXES[0] or height < LEAST_WITH_AXES[1]:
        return [tuple(runs) for runs in _plot(_Plane(roofline, width, height), roofline)]
    has_words = height >= LEAST_WITH_WORDS
    plane = _Plane(roofline, width - GUTTER, height - (4 if has_words else 2))
    rates = plane.rates
    rows = [
        ((f"{rates.get(row, ''):>{GUTTER - 2}} {'┤' if row in rates else '│'}", MUTED), *runs)
        for row, runs in enumerate(_plot(plane, roofline))
    ]
    found = [*rows, *_across(plane, "" if has_words else ACROSS_SHORT)]
    return [line((UP, MUTED)), *found, line((ACROSS.rjust(width), MUTED))] if has_words else found


class _Plane:
    """The plane of a plot of `width` by `height` cells, each of 2 by 4 dots; both axes are logarithmic to base 2."""

    def __init__(self, roofline: Roofline, width: int, height: int) -> None:
        places = [log2(each.intensity) for each in roofline.reached]
        rates = [log2(each.madds_s) for each in roofline.reached]
        if roofline.madds_s is not None and roofline.bytes_s is not None:
            places.append(log2(roofline.madds_s / roofline.bytes_s))
            rates.append(log2(roofline.madds_s))
        self.width, self.height = width, height
        self.left, self.right = _around(places, LEAST_DOUBLINGS_X)
        self.bottom, self.top = _around(rates, LEAST_DOUBLINGS_Y)
        self.n_columns, self.n_rows = 2 * width, 4 * height
        self.per_column = (self.right - self.left) / self.n_columns
        self.per_row = (self.top - self.bottom) / self.n_rows

    def dot(self, intensity: float, rate: float) -> tuple[int, int]:
        """Column from the left and row from the top; may lie outside the plot."""
        column = int((log2(intensity) - self.left) / self.per_column)
        return column, self.n_rows - 1 - int((log2(rate) - self.bottom) / self.per_row)

    def roof(self, roofline: Roofline) -> Iterator[tuple[int, int]]:
        """The dots of the roof."""
        for column in range(self.n_columns):
            intensity = 2 ** (self.left + (column + 0.5) * self.per_column)
            if rate := roofline.roof(intensity):
                row = self.dot(intensity, rate)[1]
                if 0 <= row < self.n_rows:
                    yield column, row

    @property
    def rates(self) -> dict[int, str]:
        """Figures beside rows of cells, from the top."""
        found: dict[int, str] = {}
        for mark in sorted(Axis(2.0**self.bottom / 1e9, 2.0**self.top / 1e9, 0, 1, is_log=True).marks):
            row = self.dot(1.0, mark * 1e9)[1] // 4
            if all(abs(row - other) >= BETWEEN_MARKS for other in found):
                found[row] = f"{number(mark / 1e3)} T" if mark >= 1e3 else f"{number(mark)} G"
        return found

    def intensities(self, room: int) -> dict[int, str]:
        """Figures below the first `room` columns of cells, which do not touch each other."""
        found: dict[int, str] = {}
        free = 0
        for mark in Axis(2.0**self.left, 2.0**self.right, 0, 1, is_log=True).marks:
            text, column = number(mark), self.dot(mark, 2.0**self.bottom)[0] // 2
            begin = column - len(text) // 2
            if begin >= free and begin + len(text) <= room:
                found[column] = text
                free = begin + len(text) + 2
        return found


def _across(plane: _Plane, unit: str) -> list[Line]:
    """The axis below and its figures, which leave room for the unit."""
    marks = plane.intensities(plane.width - len(unit) - bool(unit))
    axis = "".join("┴" if column in marks else "─" for column in range(plane.width))
    figures = [" "] * plane.width
    for column, text in marks.items():
        begin = column - len(text) // 2
        figures[begin : begin + len(text)] = text
    shown = "".join(figures).rstrip()
    shown += unit.rjust(plane.width - len(shown))
    return [line((f"{'└':>{GUTTER}}{axis}", MUTED)), line((" " * GUTTER + shown, MUTED))]


def _plot(plane: _Plane, roofline: Roofline) -> list[list[tuple[str, str]]]:
    """The rows of cells."""
    cells = [[0] * plane.width for _ in range(plane.height)]
    for column, row in plane.roof(roofline):
        cells[row // 4][column // 2] |= DOTS[row % 4][column % 2]
    letters: dict[tuple[int, int], str] = {}
    for each in roofline.reached:
        column, row = plane.dot(each.intensity, each.madds_s)
        place = min(max(row // 4, 0), plane.height - 1), min(max(column // 2, 0), plane.width - 1)
        letters[place] = "*" if place in letters else LETTERS[each.phase]
    return [_dots_row(number_of, dots, letters) for number_of, dots in enumerate(cells)]


def _dots_row(number_of: int, dots: list[int], letters: dict[tuple[int, int], str]) -> list[tuple[str, str]]:
    """A row of cells: runs of the roof, and letters between them."""
    runs: list[tuple[str, str]] = []
    for column, bits in enumerate(dots):
        letter = letters.get((number_of, column))
        text, style = (letter, f"{STRONG} {OTHER}") if letter else (chr(BRAILLE + bits) if bits else " ", MAIN)
        if runs and runs[-1][1] == style:
            runs[-1] = runs[-1][0] + text, style
        else:
            runs.append((text, style))
    return runs


def _around(values: list[float], least: int) -> tuple[int, int]:
    """Integer bounds with a margin of one on each side of the values, at least `least` apart."""
    low, high = floor(min(values)) - 1, ceil(max(values)) + 1
    missing = max(0, least - (high - low))
    return low - missing // 2, high + (missing + 1) // 2
