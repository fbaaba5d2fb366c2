"""Records as JSON and back: equal afterwards, and refused by name where a value cannot be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import numpy as np
import pytest

from edgeinfer.ipc.records import from_json, read_as, to_json
from edgeinfer.load_options import LoadOptions
from edgeinfer.steps import no_progress


@dataclass(frozen=True, slots=True)
class Point:
    x: float
    label: str | None = None


@dataclass(frozen=True, slots=True)
class Drawing:
    path: Path
    mode: Literal["fill", "line"]
    points: tuple[Point, ...]
    size: tuple[int, int]
    counts: Mapping[int, float]
    marked: frozenset[int] = frozenset()
    names: Sequence[str] = ()
    raw: bytes = b""
    extra: Mapping[str, object] = field(default_factory=dict)


DRAWING = Drawing(
    Path("a/b"),
    "line",
    (Point(1.5), Point(2.0, "two")),
    (3, 4),
    {2: 0.5},
    frozenset({9, 7}),
    ("n",),
    b"\x00\xff",
    {"a": [1]},
)


def test_a_record_comes_back_equal() -> None:
    text = to_json(DRAWING)
    assert "\n" not in text
    assert from_json(Drawing, text) == DRAWING


def test_functions_stay_where_they_are() -> None:
    load = LoadOptions(device="cpu", cores=(0, 2), verify_cost={4: 1.5}, progress=lambda *_: None)
    assert from_json(LoadOptions, to_json(load)) == replace(load, progress=no_progress)


def test_what_has_a_default_may_be_missing_and_numbers_of_numpy_are_numbers() -> None:
    assert from_json(Point, to_json(Point(np.float32(0.5)))) == Point(0.5)
    assert from_json(Point, '{"x": 1}') == Point(1.0)


@pytest.mark.parametrize(
    ("kind", "value", "reason"),
    [
        (Point, None, "no Point"),
        (Point, {}, "without x"),
        (Point, {"x": "1"}, r"Point\.x: '1' is no int"),
        (Point, {"x": True}, "no int"),
        (Point, {"x": 1, "label": 2}, r"Point\.label: 2 is no str"),
        (Point, {"x": 1, "y": 2}, "has no y"),
        (tuple[int, int], [1], "1 values where there must be 2"),
        (tuple[int, ...], "12", "no list"),
        (tuple[int, ...], [1, 2.5], "no int"),
        (Literal["a", "b"], "c", "none of a, b"),
        (Mapping[int, float], {"one": 1}, "int"),
        (Mapping[int, float], [1], "no mapping"),
        (frozenset[int], {"a": 1}, "no list"),
        (bytes, "no base64!", "base64|padding"),
    ],
)
def test_a_value_that_cannot_be_is_refused(kind: object, value: object, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        read_as(kind, value)


def test_objects_without_a_form_are_refused_by_their_class() -> None:
    with pytest.raises(TypeError, match="generator cannot be sent"):
        to_json(x for x in "ab")
    with pytest.raises(TypeError, match="cannot be read from JSON"):
        read_as(complex, 1)
