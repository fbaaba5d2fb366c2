"""The roofline panel: multiply-adds per second over multiply-adds per byte, on logarithmic axes, drawn in braille.

In: a `readings.Roofline`. Out: lines: the roof, P for prefill and D for decode, and their figures as text.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil, floor, log2

from edgeinfer.app.readings.records import Reached, Roofline
from edgeinfer.app.tui.figures import longest_that_fits, percent
from edgeinfer.app.tui.widgets.machine_panels import MAIN, MUTED, OTHER, STRONG, Line, Panel, line, wrapped

DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
"""Bits of a braille cell by row and column."""
BRAILLE = 0x2800
LETTERS = {"prefill": "P", "decode": "D"}
LEAST_PLOT = (16, 3)
"""Minimum cells for a plot; below this only text is shown."""
LEAST_DOUBLINGS_X, LEAST_DOUBLINGS_Y = 6, 4


class RooflinePanel(Panel[Roofline]):
    """The roofline panel of the machine screen."""

    TITLE = "roofline"

    def lines(self, record: Roofline, width: int, height: int) -> list[Line]:
        return roofline_lines(record, width, height)


def roofline_lines(roofline: Roofline, width: int, height: int) -> list[Line]:
    """The plot, if it fits, and the figures."""
    words = [_words(each, roofline, width) for each in roofline.reached]
    if roofline.bytes_s is not None and roofline.madds_s is not None:
        roof = f"roof {roofline.bytes_s / 1e9:.1f} GB/s, {_giga(roofline.madds_s)} multiply-adds/s"
        words.append(line((roof, MUTED)))
    if roofline.note:
        words += wrapped(roofline.note, width, MUTED)
    room = height - len(words)
    has_plot = (roofline.reached or roofline.bytes_s) and width >= LEAST_PLOT[0] and room >= LEAST_PLOT[1]
    return [*(_plot(roofline, width, room) if has_plot else []), *words]


def _words(reached: Reached, roofline: Roofline, width: int) -> Line:
    """The figures of a phase, with its name if it fits."""
    roof = roofline.roof(reached.intensity)
    share = "" if roof is None else f", {percent(reached.madds_s / roof).strip()} of roof"
    of_bytes, of_madds = f"{reached.bytes_s / 1e9:.1f} GB/s", _giga(reached.madds_s)
    name = f" {reached.phase:<7}"
    figures = longest_that_fits(
        width - 1,
        f"{name} {of_bytes}, {of_madds} multiply-adds/s{share}",
        f" {of_bytes}, {of_madds} multiply-adds/s{share}",
        f"{name} {of_bytes}, {of_madds}/s{share}",  # multiply-adds, as in the line about the roof
        f" {of_bytes}, {of_madds}/s{share}",
    )
    return line((LETTERS[reached.phase], f"{STRONG} {OTHER}"), figures)


def _giga(rate: float) -> str:
    return f"{rate / 1e9:.0f} G" if rate >= 1e10 else f"{rate / 1e9:.1f} G"


class _Axes:
    """Axes of a plot of `width` by `height` cells, each of 2 by 4 dots; both axes are logarithmic to base 2."""

    def __init__(self, roofline: Roofline, width: int, height: int) -> None:
        places = [log2(each.intensity) for each in roofline.reached]
        rates = [log2(each.madds_s) for each in roofline.reached]
        if roofline.madds_s is not None and roofline.bytes_s is not None:
            places.append(log2(roofline.madds_s / roofline.bytes_s))
            rates.append(log2(roofline.madds_s))
        self.left, right = _around(places, LEAST_DOUBLINGS_X)
        self.bottom, top = _around(rates, LEAST_DOUBLINGS_Y)
        self.n_columns, self.n_rows = 2 * width, 4 * height
        self.per_column = (right - self.left) / self.n_columns
        self.per_row = (top - self.bottom) / self.n_rows

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


def _plot(roofline: Roofline, width: int, height: int) -> list[Line]:
    axes = _Axes(roofline, width, height)
    cells = [[0] * width for _ in range(height)]
    for column, row in axes.roof(roofline):
        cells[row // 4][column // 2] |= DOTS[row % 4][column % 2]
    letters: dict[tuple[int, int], str] = {}
    for each in roofline.reached:
        column, row = axes.dot(each.intensity, each.madds_s)
        place = min(max(row // 4, 0), height - 1), min(max(column // 2, 0), width - 1)
        letters[place] = "*" if place in letters else LETTERS[each.phase]
    return [_row(number, dots, letters) for number, dots in enumerate(cells)]


def _row(number: int, dots: list[int], letters: dict[tuple[int, int], str]) -> Line:
    """A row of cells: runs of the roof, and letters between them."""
    runs: list[tuple[str, str]] = []
    for column, bits in enumerate(dots):
        letter = letters.get((number, column))
        text, style = (letter, f"{STRONG} {OTHER}") if letter else (chr(BRAILLE + bits) if bits else " ", MAIN)
        if runs and runs[-1][1] == style:
            runs[-1] = runs[-1][0] + text, style
        else:
            runs.append((text, style))
    return tuple(runs)


def _around(values: list[float], least: int) -> tuple[int, int]:
    """Integer bounds with a margin of one on each side of the values, at least `least` apart."""
    low, high = floor(min(values)) - 1, ceil(max(values)) + 1
    missing = max(0, least - (high - low))
    return low - missing // 2, high + (missing + 1) // 2
