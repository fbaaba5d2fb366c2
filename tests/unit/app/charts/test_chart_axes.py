"""Axes: values lie where they belong, marks are round and within the axis."""

from __future__ import annotations

import pytest

from edgeinfer.app.charts.axes import doubling, from_zero, number, unit_of


@pytest.mark.parametrize("largest", [0.0, 3e-7, 0.031, 1.0, 7.0, 99.0, 12345.6, 3e13])
def test_a_linear_axis_has_few_round_marks_and_room_for_the_largest_value(largest: float) -> None:
    axis = from_zero((largest / 2, largest), 100, 500)
    marks = axis.marks
    assert axis(0) == 100
    assert axis(largest) <= 500
    assert axis(axis.high / 2) == pytest.approx(300)
    assert marks[0] == 0
    assert 3 <= len(marks) <= 9
    step = marks[1] - marks[0]
    assert f"{step:.1e}"[:3] in ("1.0", "2.0", "2.5", "5.0")
    assert all(100 <= axis(mark) <= 500 for mark in marks)


def test_a_logarithmic_axis_gives_each_doubling_the_same_room() -> None:
    axis = doubling((1, 32), 0, 500, is_binary=True)
    assert [axis(2**n) for n in range(6)] == pytest.approx([0, 100, 200, 300, 400, 500])
    assert axis.marks == (1, 2, 4, 8, 16, 32)
    assert (axis(0.1), axis(1000)) == (0, 500)


@pytest.mark.parametrize(
    ("low", "high"), [(1, 8), (0.7, 700), (1e-3, 1e9), (5, 5), (150, 160)], ids=["near", "far", "wide", "one", "close"]
)
def test_decimal_marks_are_few_round_and_within(low: float, high: float) -> None:
    axis = doubling((low, high), 0, 100)
    assert axis.low <= low
    assert axis.high >= high
    assert 0 < len(axis.marks) <= 8
    assert all(axis.low <= mark <= axis.high for mark in axis.marks)
    assert all(f"{mark:.0e}"[0] in "1235" for mark in axis.marks)


@pytest.mark.parametrize(
    ("value", "text"),
    [(1652.4, "1,652"), (99.96, "100"), (45.34, "45.3"), (4.531, "4.53"), (0.0312, "0.031"), (3.0, "3"), (0.0, "0")],
)
def test_numbers_have_three_digits(value: float, text: str) -> None:
    assert number(value) == text


def test_units_have_the_prefix_of_the_largest_value() -> None:
    assert unit_of(5.3e8, "B") == (1e6, "MB")
    assert unit_of(1e9, "B") == (1e9, "GB")
    assert unit_of(12, "B") == (1.0, "B")
    assert unit_of(7e-3, "s") == (1e-3, "ms")
    assert unit_of(2.0, "s") == (1.0, "s")
    assert unit_of(3e-7, "s") == (1e-6, "µs")
