"""Line breaks of a text: kept where a paragraph has them, and text that stands does not move when more comes."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from edgeinfer.app.tui.text.drawing import Drawer, Palette, text_of
from edgeinfer.app.tui.widgets.entries import AnswerEntry

POEM = "Roses are red,\nviolets are **blue\nand** green.\n\nName: Ada\nBorn: 1815"
WORDS = st.sampled_from(("word", "*other*", "`x1`", "Ünï", "Name: Ada"))
LINES = st.lists(st.lists(WORDS, min_size=1, max_size=8).map(" ".join), min_size=1, max_size=40)


def shown(text: str, width: int = 60) -> str:
    return text_of(AnswerEntry(1, text).lines(Drawer(width, Palette()))).rstrip("\n")


def test_a_poem_keeps_its_lines() -> None:
    assert shown(POEM) == "Roses are red,\nviolets are blue\nand green.\n\nName: Ada\nBorn: 1815"


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("- an item\n  goes on\n- other\n  too", " • an item\n   goes on\n • other\n   too"),
        ("1. an item\n   goes on", " 1. an item\n    goes on"),
        ("> a quote\n> goes on", "▌ a quote\n▌ goes on"),
        ("with two spaces  \nas well", "with two spaces\nas well"),
    ],
)
def test_items_and_quotes_keep_their_lines(text: str, seen: str) -> None:
    assert shown(text) == seen


def test_code_and_tables_are_as_they_were() -> None:
    assert [line.strip("─") for line in shown("```\na\nb\n```").split("\n")] == [" 1 ", "a", "b", ""]
    assert shown("say `a\nb`") == "say a b"
    assert shown("| a | b |\n|-|-|\n| 1 | 2 |").split() == ["a", "b", "────", "1", "2"]


@example(["word *other* Ünï word `x1`"] * 32, 37)
@settings(max_examples=60, deadline=None)
@given(LINES, st.integers(12, 60))
def test_lines_that_stand_do_not_move_when_more_comes(lines: list[str], width: int) -> None:
    answer, drawer = AnswerEntry(1), Drawer(width, Palette())
    answer.begin()
    before: list[str] = []
    for line in lines:
        answer.grow(line + "\n")
        seen = [strip.text.rstrip() for strip in answer.lines(drawer)][:-2]  # the sign of writing, and the space below
        assert seen[: len(before)] == before
        before = seen
    answer.finish("\n".join(lines), "")
    assert [strip.text.rstrip() for strip in answer.lines(drawer)][:-1] == before
