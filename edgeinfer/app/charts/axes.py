"""Axes of charts: where a value lies, and which values are marked.

In: the values to show, the pixels to show them in. Out: places in pixels, marks with short texts. Draws nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import ceil, floor, log2, log10

N_MARKS = 6


@dataclass(frozen=True, slots=True)
class Axis:
    """Values from `low` to `high` on pixels from `start` to `end`; logarithmic or linear."""

    low: float
    high: float
    start: float
    end: float
    is_log: bool = False
    is_binary: bool = False
    """Whether a logarithmic axis is marked at powers of two, instead of 1, 2, 5, 10 and so on."""

    def __call__(self, value: float) -> float:
        """The pixel of a value; values outside lie at the nearer end."""
        value = min(max(value, self.low), self.high)
        share = (
            log2(value / self.low) / log2(self.high / self.low)
            if self.is_log
            else (value - self.low) / (self.high - self.low)
        )
        return self.start + share * (self.end - self.start)

    @property
    def marks(self) -> tuple[float, ...]:
        """Round values within the axis."""
        if not self.is_log:
            return _steps(self.low, self.high)
        return (_powers if self.is_binary else _decimals)(self.low, self.high)


def from_zero(values: Iterable[float], start: float, end: float) -> Axis:
    """A linear axis from zero to a little more than the largest value."""
    return Axis(0.0, max((*values, 0.0)) * 1.04 or 1.0, start, end)


def doubling(values: Iterable[float], start: float, end: float, *, is_binary: bool = False) -> Axis:
    """A logarithmic axis between powers of two, for values above zero."""
    places = [log2(value) for value in values]
    low, high = floor(min(places)), ceil(max(places))
    return Axis(2.0**low, 2.0 ** max(high, low + 1), start, end, is_log=True, is_binary=is_binary)


def _steps(low: float, high: float) -> tuple[float, ...]:
    rough = (high - low) / N_MARKS
    power = 10.0 ** floor(log10(rough))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= rough * 0.999)
    return tuple(step * n for n in range(ceil(low / step), floor(high / step) + 1))


def _powers(low: float, high: float) -> tuple[float, ...]:
    first, last = ceil(log2(low) - 1e-9), floor(log2(high) + 1e-9)
    step = max(1, ceil((last - first) / 10))
    return tuple(2.0**n for n in range(first, last + 1, step))


def _decimals(low: float, high: float) -> tuple[float, ...]:
    decades = range(floor(log10(low)), ceil(log10(high)) + 1)
    for factors in ((1, 2, 5), (1, 3), (1,)):
        found = tuple(10.0**n * factor for n in decades for factor in factors if low <= 10.0**n * factor <= high)
        if len(found) <= 8:
            return found
    return found[:: ceil(len(found) / 8)]


def number(value: float) -> str:
    """A value in few digits: 1,652; 45.3; 4.53; 0.031."""
    size = abs(value)
    if size >= 99.95 or value == int(value):
        return f"{value:,.0f}"
    if size >= 9.995:
        return f"{value:.1f}"
    return f"{value:.2f}" if size >= 0.1 else f"{value:.2g}"


PREFIXES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def unit_of(largest: float, unit: str) -> tuple[float, str]:
    """A divisor, and the unit with its prefix, for values up to `largest`: GB, MB, kB; s, ms, µs."""
    if unit == "s":
        return next(((size, name) for size, name in ((1.0, "s"), (1e-3, "ms")) if largest >= size), (1e-6, "µs"))
    return next(((size, prefix + unit) for size, prefix in PREFIXES if largest >= size), (1.0, unit))
