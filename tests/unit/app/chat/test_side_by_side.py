"""What `/several` and `/map` are given after their names."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgeinfer.app.chat.side_by_side import MapAsked, SeveralAsked, map_asked, parts_text, several_asked
from edgeinfer.errors import BadSetting, EdgeInferError
from tests.pictures import picture_file


@pytest.mark.parametrize(
    ("argument", "asked"),
    [
        ("4", SeveralAsked(4, "vote", "")),
        ("4 What is 2 + 2?", SeveralAsked(4, "vote", "What is 2 + 2?")),
        ("64 pick=shortest", SeveralAsked(64, "shortest", "")),
        (" 2  pick=likely   Two\nlines ", SeveralAsked(2, "likely", "Two\nlines")),
        ("3\nWhat?", SeveralAsked(3, "vote", "What?")),
        ("3 4 pick=vote is what?", SeveralAsked(3, "vote", "4 pick=vote is what?")),
    ],
)
def test_several(argument: str, asked: SeveralAsked) -> None:
    assert several_asked(argument) == asked


@pytest.mark.parametrize("argument", ["", "What?", "0", "1", "65", "-4", "4.5 What?", "99999999999", "four"])
def test_a_number_is_needed(argument: str) -> None:
    with pytest.raises(BadSetting, match=r"how many answers. 2 to 64: /several 4 QUESTION"):
        several_asked(argument)


@pytest.mark.parametrize("pick", ["best", "check", "check:true"])
def test_picks_that_there_are(pick: str) -> None:
    with pytest.raises(BadSetting, match=f"pick cannot be {pick}; there are: .*shortest.*vote"):
        several_asked(f"4 pick={pick} What?")


def test_lines_below_the_instruction_are_items() -> None:
    asked = map_asked("Translate to French:\n the dog \n\n  \nthe cat")
    assert asked == MapAsked("Translate to French:", ("the dog", "the cat"))
    assert asked.question == "Translate to French:\n\nthe dog\nthe cat"


def test_lines_of_a_file_are_items(tmp_path: Path) -> None:
    (tmp_path / "my lines.txt").write_text("one\n\ntwo\r\n")
    asked = map_asked('Count @"my lines.txt"\nthree', tmp_path)
    assert (asked.instruction, asked.items) == ("Count", ("one", "two", "three"))
    assert [(one.name, one.text) for one in asked.files] == [("my lines.txt", "one\n\ntwo\r\n")]
    assert asked.question == "Count"


@pytest.mark.parametrize("argument", ["", "Translate", "Translate\n  \n", "\nthe dog"])
def test_an_instruction_and_items_are_needed(argument: str) -> None:
    with pytest.raises(BadSetting, match=r"what is to be done with which items. /map INSTRUCTION"):
        map_asked(argument)


def test_files_without_lines_are_refused(tmp_path: Path) -> None:
    picture_file(tmp_path / "sea.png", 8, 8)
    with pytest.raises(BadSetting, match=r"sea.png is no text; the items are lines of a text file"):
        map_asked("Describe @sea.png", tmp_path)
    with pytest.raises(EdgeInferError, match=r"none.txt cannot be attached"):
        map_asked("Describe @none.txt", tmp_path)


def test_parts_stand_under_their_items() -> None:
    items = ("the *dog*", "x" * 100)
    text = parts_text(items, lambda number: [" le chien\n", ""][number])
    assert text == f"**1. the \\*dog\\***\n\nle chien\n\n**2. {'x' * 59}…**"
