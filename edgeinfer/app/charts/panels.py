"""Panels of a chart: bars, curves, and bars made of parts; each with axes, units and a title.

In: frozen records of what is shown. Out: shapes in a `Drawing`, below a given place. Knows no benchmark and no plan.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from edgeinfer.app.charts.axes import Axis, doubling, from_zero, number
from edgeinfer.app.charts.svg import N_COLOURS, Drawing, Point, text_width

LABELS = 168
"""Pixels for the names of bars."""
VALUES = 180
"""Pixels to the right of the longest bar, for its figure."""
HEAD, LEGEND, FOOT, ROW, BAR = 26, 18, 34, 22, 15
PLOT = 240
"""Height of a plot of curves."""
LINES = ("dashed", "range")
"""Styles of lines, which legends show as lines."""
MARGIN = 68
"""Pixels to the left of a plot, for the figures of its axis."""


class ChartPanel(Protocol):
    """A part of a chart."""

    @property
    def height(self) -> float: ...

    def draw(self, to: Drawing, x: float, y: float, width: float) -> None:
        """Draw below `y`."""
        ...


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar; `low` and `high` are the least and the most of several runs. `text` replaces the figure at its end."""

    label: str
    value: float
    colour: int
    low: float | None = None
    high: float | None = None
    text: str = ""


@dataclass(frozen=True, slots=True)
class BarGroup:
    """Bars under a name ("" for none)."""

    name: str
    bars: tuple[Bar, ...]


@dataclass(frozen=True, slots=True)
class BarPanel:
    """Groups of horizontal bars on one axis from zero."""

    title: str
    unit: str
    groups: tuple[BarGroup, ...]

    @property
    def height(self) -> float:
        rows = sum(ROW * len(group.bars) + (ROW if group.name else 6) for group in self.groups)
        return HEAD + rows + FOOT

    def draw(self, to: Drawing, x: float, y: float, width: float) -> None:
        to.text(x, y + 14, self.title, "head")
        values = [max(bar.value, bar.high or 0.0) for group in self.groups for bar in group.bars]
        axis = from_zero(values, x + LABELS, x + width - VALUES)
        top, bottom = y + HEAD, y + self.height - FOOT + 4
        _across(to, axis, top, bottom, self.unit)
        place = top
        for group in self.groups:
            if group.name:
                to.text(x, place + 15, group.name, "soft")
            place += ROW if group.name else 6
            for bar in group.bars:
                _bar(to, bar, axis, x, place)
                place += ROW


def _bar(to: Drawing, bar: Bar, axis: Axis, x: float, y: float) -> None:
    label = shortened(bar.label, LABELS - 18)
    to.text(x + 8, y + 12, label)
    end = axis(bar.value)
    to.rect(axis.start, y, max(1.5, end - axis.start), BAR, f"f{bar.colour % N_COLOURS}", f"{bar.label}: {bar.text}")
    if bar.low is not None and bar.high is not None:
        low, high = axis(bar.low), axis(bar.high)
        to.line(low, y + BAR / 2, high, y + BAR / 2, "range")
        for place in (low, high):
            to.line(place, y + 4, place, y + BAR - 4, "range")
        end = max(end, high)
    to.text(end + 7, y + 12, bar.text or number(bar.value))


def _across(to: Drawing, axis: Axis, top: float, bottom: float, unit: str) -> None:
    """A horizontal axis below bars, its grid, and its unit."""
    for mark in axis.marks:
        to.line(axis(mark), top, axis(mark), bottom, "grid")
        to.text(axis(mark), bottom + 15, number(mark), "small", "middle")
    to.line(axis.start, bottom, axis.end, bottom, "axis")
    to.text(axis.end + 14, bottom + 15, unit, "small")


@dataclass(frozen=True, slots=True)
class BarPart:
    """A part of a bar, named where a pointer rests on it. `style`: of the drawing; "" leaves a gap."""

    name: str
    value: float
    style: str


@dataclass(frozen=True, slots=True)
class PartedRow:
    """A bar made of parts, laid end to end; `limit` is marked, and named in `limit_text`."""

    label: str
    parts: tuple[BarPart, ...]
    text: str
    limit: float | None = None
    limit_text: str = ""

    @property
    def whole(self) -> float:
        return sum(part.value for part in self.parts)


@dataclass(frozen=True, slots=True)
class PartsPanel:
    """Rows of parts on one axis, and a legend with every name once."""

    title: str
    unit: str
    rows: tuple[PartedRow, ...]
    legend: tuple[tuple[str, str], ...]
    """Names with styles."""

    @property
    def height(self) -> float:
        return HEAD + LEGEND + (ROW + 6) * len(self.rows) + FOOT

    def draw(self, to: Drawing, x: float, y: float, width: float) -> None:
        to.text(x, y + 14, self.title, "head")
        legend(to, self.legend, x, y + HEAD + 8, width)
        limits = [row.limit for row in self.rows if row.limit is not None and row.limit < 4 * row.whole]
        axis = from_zero((*(row.whole for row in self.rows), *limits), x + LABELS, x + width - VALUES)
        top, bottom = y + HEAD + LEGEND, y + self.height - FOOT
        _across(to, axis, top, bottom, self.unit)
        for number_of, row in enumerate(self.rows):
            self._row(to, row, axis, x, top + 6 + number_of * (ROW + 6))

    def _row(self, to: Drawing, row: PartedRow, axis: Axis, x: float, y: float) -> None:
        to.text(x + 8, y + 13, shortened(row.label, LABELS - 18))
        done = 0.0
        for part in row.parts:
            begin, end = axis(done), axis(done + part.value)
            if part.style:
                to.rect(begin, y, end - begin, BAR + 3, part.style, part.name)
            done += part.value
        place = axis(done)
        if row.limit is not None and row.limit <= axis.high:
            limit = axis(row.limit)
            to.line(limit, y - 4, limit, y + BAR + 7, "range")
            place = max(place, limit)
        shown = f"{row.text} {row.limit_text}".rstrip()
        to.text(place + 7, y + 13, shown)


def legend(to: Drawing, names: Sequence[tuple[str, str]], x: float, y: float, width: float) -> None:
    """Names with the style of each, in one line as far as there is room."""
    place = x + 8
    for name, style in names:
        needed = 20 + text_width(name) + 14
        if place + needed > x + width:
            break
        if style in LINES:
            to.line(place, y - 4, place + 13, y - 4, style)
        else:
            to.rect(place, y - 9, 11, 11, style)
        to.text(place + 17, y, name, "small")
        place += needed


@dataclass(frozen=True, slots=True)
class ChartCurve:
    """Points joined by lines; `style` is a line's, and `dots` a fill's or "" for none."""

    name: str
    points: tuple[Point, ...]
    style: str
    dots: str = ""


@dataclass(frozen=True, slots=True)
class Spot:
    """A named point beside the curves."""

    name: str
    at: Point
    style: str


@dataclass(frozen=True, slots=True)
class CurvePanel:
    """Curves on two logarithmic axes; all values are above zero."""

    title: str
    across: str
    up: str
    curves: tuple[ChartCurve, ...]
    spots: tuple[Spot, ...] = ()
    marks: tuple[float, ...] = ()
    """Values marked on the axis below, () for any."""
    is_binary: bool = False
    """Whether powers of two are marked, instead of round decimals."""

    @property
    def height(self) -> float:
        return HEAD + ROW + PLOT + FOOT + 20

    def draw(self, to: Drawing, x: float, y: float, width: float) -> None:
        to.text(x, y + 14, self.title, "head")
        shown = [(curve.name, curve.dots or curve.style.replace("l", "f")) for curve in self.curves if curve.name]
        legend(to, shown, x, y + HEAD + 8, width)
        left, right, top = x + MARGIN, x + width - 24, y + HEAD + ROW
        points = [*(point for curve in self.curves for point in curve.points), *(spot.at for spot in self.spots)]
        over = doubling([at for at, _ in points], left, right, is_binary=self.is_binary)
        up = doubling([value for _, value in points], top + PLOT, top, is_binary=self.is_binary)
        self._axes(to, over, up)
        for curve in self.curves:
            to.path([(over(at), up(value)) for at, value in curve.points], curve.style)
            for at, value in curve.points if curve.dots else ():
                to.dot(over(at), up(value), curve.dots, f"{curve.name}: {number(at)}, {number(value)}", 3.5)
        for spot in self.spots:
            place, rate = over(spot.at[0]), up(spot.at[1])
            to.dot(place, rate, spot.style, spot.name, 5.5)
            is_right = place > (left + right) / 2
            to.text(place + (-10 if is_right else 10), rate + 18, spot.name, "", "end" if is_right else "start")

    def _axes(self, to: Drawing, over: Axis, up: Axis) -> None:
        for mark in up.marks:
            to.line(over.start, up(mark), over.end, up(mark), "grid")
            to.text(over.start - 8, up(mark) + 4, number(mark), "small", "end")
        for mark in self.marks or over.marks:
            to.line(over(mark), up.start, over(mark), up.end, "grid")
            to.text(over(mark), up.start + 16, number(mark), "small", "middle")
        to.line(over.start, up.start, over.end, up.start, "axis")
        to.line(over.start, up.start, over.start, up.end, "axis")
        to.text((over.start + over.end) / 2, up.start + 36, self.across, "small", "middle")
        to.standing(over.start - MARGIN + 12, (up.start + up.end) / 2, self.up)


def shortened(text: str, width: float) -> str:
    """A text that fits a width, cut with an ellipsis."""
    n = int(width / text_width("n"))
    return text if len(text) <= n else text[: n - 1] + "…"
