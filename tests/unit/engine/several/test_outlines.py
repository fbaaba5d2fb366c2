"""Outlines: what is read of a text as points, and what is no outline."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeinfer.engine.several.outlines import (
    EXAMPLES,
    FIRST,
    LEAST_POINTS,
    MOST_POINTS,
    NoOutline,
    Outline,
    is_lost,
    outline_regex,
    outline_turns,
    point_start,
    point_stops,
    point_turns,
    read_outline,
)


@pytest.mark.parametrize(
    ("text", "points"),
    [
        ("1. Rain\n2. Sun", ("Rain", "Sun")),
        ("1. Rain.\n\n2. Sun:\n3. Wind, ", ("Rain", "Sun", "Wind")),
        ("1) Rain\n2) Sun\n", ("Rain", "Sun")),
        ("1. **Clear sky**\n2. *Dark* sky\n3. `Grey`", ("Clear sky", "Dark* sky", "Grey")),
        ("Here it is:\n1. Rain\n  - heavy\n2. Sun\nI hope it helps.", ("Rain", "Sun")),
        ("1.Rain\n2.Sun", ("Rain", "Sun")),
        (" 1. 5 apples\r\n 2. 3.5 pears\r\n", ("5 apples", "3.5 pears")),
        ("1. 晴天\n2. 雨天", ("晴天", "雨天")),
        ("1. Same thing\n2. Same things", ("Same thing", "Same things")),
    ],
)
def test_points_are_read(text: str, points: tuple[str, ...]) -> None:
    assert read_outline(text) == Outline(points)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "no points"),
        ("I cannot say.", "no points"),
        ("- Rain\n- Sun", "no points"),
        ("1. Rain", "only one point"),
        ("1. Rain\n1. Sun", "point 1 of the outline comes where 2 should"),
        ("2. Rain\n3. Sun", "point 2 of the outline comes where 1 should"),
        ("1. Rain\n3. Sun", "point 3 of the outline comes where 2 should"),
        ("1. Rain\n2. Sun\n3. rain!", "point 3 of the outline repeats another one"),
        ("1. Rain\n2.\n3. Sun", "point 2 of the outline is empty"),
        ("1. Rain\n2. **\n3. Sun", "point 2 of the outline is empty"),
        ("1. Rain\n2. " + "very " * 20 + "hot", "point 2 of the outline is too long"),
        ("1. Rain\n2. " + "很" * 200, "point 2 of the outline is too long"),
        ("\n".join(f"{number}. Point {number}" for number in range(1, 13)), "more than 10 points"),
        ("1. Better insulation\n2. Shorter showers", "copies an example"),
    ],
)
def test_what_is_no_outline_is_told(text: str, reason: str) -> None:
    found = read_outline(text)
    assert isinstance(found, NoOutline)
    assert reason in found.reason


def test_an_outline_that_was_cut_is_none() -> None:
    found = read_outline("1. Rain\n2. Sun\n3. Wi", is_whole=False)
    assert isinstance(found, NoOutline)
    assert "did not come to an end" in found.reason


@given(st.lists(st.from_regex(r"[a-z]{3,8}( [a-z]{3,8}){0,3}", fullmatch=True), min_size=2, max_size=10, unique=True))
def test_what_was_read_is_read_again(points: list[str]) -> None:
    outline = read_outline("\n".join(f"{number}. {point}" for number, point in enumerate(points, 1)))
    assert isinstance(outline, Outline)
    assert read_outline(outline.text) == outline == Outline(tuple(points))


@given(st.text(max_size=200))
def test_no_text_is_too_strange(text: str) -> None:
    found = read_outline(text)
    if isinstance(found, Outline):
        assert LEAST_POINTS <= len(found.points) <= MOST_POINTS
        assert len(set(found.points)) == len(found.points)
    else:
        assert found.reason


@given(
    st.lists(st.sampled_from(["1. Rain", "2. Sun", "2.", "3. Wind", "3. Rain", "and", "4. " + "x " * 30]), max_size=6)
)
def test_what_is_lost_is_no_outline_however_it_goes_on(lines: list[str]) -> None:
    text = "\n".join(lines)
    for end in range(len(text)):
        if is_lost(text[:end]):
            assert isinstance(read_outline(text), NoOutline)
            return


def test_a_line_that_may_go_on_is_not_lost() -> None:
    assert not is_lost("1. Rain\n2. Rain")
    assert is_lost("1. Rain\n2. Rain\n")
    assert not is_lost("1. Rain\n2. Rainbows\n")


def test_the_regular_expression_has_outlines_alone() -> None:
    pattern = re.compile(re.escape(FIRST) + outline_regex())
    for n_points in range(1, 13):
        text = "\n".join(f"{number}. Point {chr(96 + number)}" for number in range(1, n_points + 1))
        assert bool(pattern.fullmatch(text)) == (3 <= n_points <= MOST_POINTS)
        if pattern.fullmatch(text):
            assert isinstance(read_outline(text), Outline)
    assert not pattern.fullmatch("1. Rain\n3. Sun\n2. Wind")
    assert not pattern.fullmatch("1. " + "x" * 80 + "\n2. Sun\n3. Wind")


def test_examples_are_outlines() -> None:
    for question, points in EXAMPLES:
        assert 3 <= len(points) <= 10
        assert question.endswith("?")


def test_what_points_have_in_common_comes_first() -> None:
    question, outline = "What about the weather?", Outline(("Rain", "Sun", "Wind"))
    asked = [point_turns(question, outline, number) for number in (1, 2, 3)]
    texts = [turns[-2]["content"] for turns in asked]
    assert all(text.startswith(question) and outline.text in text for text in texts)
    assert [text.rpartition("Write point ")[2] for text in texts] == ["1 now.", "2 now.", "3 now."]
    assert len({text.rpartition("Write point ")[0] for text in texts}) == 1
    assert (
        [turns[-1]["content"] for turns in asked]
        == ["1. Rain:", "2. Sun:", "3. Wind:"]
        == [point_start(outline, number) for number in (1, 2, 3)]
    )
    assert point_stops(outline) == ("\n1.", "\n2.", "\n3.", "\n4.", "\n\n")


def test_an_outline_is_begun_for_the_model() -> None:
    turns = outline_turns("What about the weather?")
    assert [turn["role"] for turn in turns] == ["user", "assistant"] * 3
    assert turns[-1]["content"] == FIRST
    assert turns[-2]["content"].startswith("What about the weather?\n")
