"""What is printed of an answer with thoughts: on a terminal they are dimmed, elsewhere only the answer is written."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pytest

from edgeinfer.app.answer_output import DIM, USUAL, print_answer
from edgeinfer.models.text.answer_reader import AnswerReader
from edgeinfer.models.text.thought_formats import THOUGHT_FORMATS

THINK = "<think>\nIs it \x1b[2J four?\n</think>\n\nFour.\n"
CHANNELS = "<|channel|>analysis<|message|>Two and two.<|end|><|start|>assistant<|channel|>final<|message|>Four."


class Spoken:
    """A stream that gives a text in pieces of a few characters."""

    def __init__(self, text: str, form: str | None, size: int = 3) -> None:
        self.reader = None if form is None else AnswerReader(THOUGHT_FORMATS.get(form))
        self._pieces = [text[at : at + size] for at in range(0, len(text), size)]

    def __iter__(self) -> Iterator[str]:
        return iter(self._pieces)

    def stop(self) -> None:
        raise AssertionError("nobody stops it")


def printed(stream: Any, capsys: pytest.CaptureFixture[str]) -> str:
    assert not print_answer(stream)
    return capsys.readouterr().out


@pytest.mark.parametrize(("text", "form"), [(THINK, "think"), (CHANNELS, "harmony")])
def test_files_and_pipes_get_the_answer_alone(text: str, form: str, capsys: pytest.CaptureFixture[str]) -> None:
    for size in (1, 3, 1000):
        assert printed(Spoken(text, form, size), capsys) == "Four.\n"


def test_a_terminal_shows_thoughts_dimmed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    shown = printed(Spoken(THINK, "think"), capsys)
    assert shown.startswith(f"{DIM}Is it ")
    assert shown.endswith(f"four?{USUAL}\n\nFour.\n")
    assert shown.count("\x1b") == 2


@pytest.mark.parametrize(("text", "shown"), [("", "\n"), ("a", "a\n"), ("a\n", "a\n"), (THINK, THINK)])
def test_other_answers_are_printed_as_they_are(text: str, shown: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert printed(Spoken(text, None), capsys) == shown
