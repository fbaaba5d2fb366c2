"""What `scripts/compare_drafted_text.py` tells: that drafts change nothing, or where; and how far it has come."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from scripts.compare_drafted_text import main

TEXTS = ("the rain in the inn", "an inn", "the hen in the tin", "then")


@pytest.fixture
def compare(
    tiny_model: Path, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str]]:
    """Runs the script with further arguments; its exit status and what it told."""
    questions = tmp_path / "questions.jsonl"
    questions.write_text("".join(json.dumps({"turns": [text, "and?"]}) + "\n" for text in TEXTS))
    usual = tiny_model, questions, "--tokens", 24, "--ctx", 128, "--threads", 1, "--spec", 6

    def run(*arguments: object) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["compare", *map(str, (*usual, *arguments))])
        return main(), capsys.readouterr().out

    return run


@pytest.mark.parametrize("how", [(), ("--parallel", 3), ("--sampled", "--parallel", 2), ("--ram", 300_000)])
def test_nothing_differs(compare: Callable[..., tuple[int, str]], how: tuple[object, ...]) -> None:
    status, told = compare(*how)
    assert status == 0
    assert "4 of 4 answers" in told
    assert "(0 " not in told
    assert told.endswith("0 answers differ\n")


def test_a_run_goes_on_where_the_last_one_ended(compare: Callable[..., tuple[int, str]], tmp_path: Path) -> None:
    kept = tmp_path / "kept.jsonl"
    status, told = compare("--kept", kept, "--minutes", 0)
    assert (status, told.split(": ")[1][:15]) == (3, "0 of 4 answers,")
    assert compare("--kept", kept, "--count", 2)[0] == 0
    lines = kept.read_text().splitlines()
    assert len(lines) == 4
    assert compare("--kept", kept)[0] == 0
    assert kept.read_text().splitlines()[:4] == lines
    assert len(kept.read_text().splitlines()) == 2 * len(TEXTS)


def changed(kept: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change the drafted answers of a file."""
    answers = [json.loads(line) for line in kept.read_text().splitlines()]
    for answer in answers:
        if "spec" in answer["way"]:
            change(answer)
    kept.write_text("".join(json.dumps(answer) + "\n" for answer in answers))


def test_what_differs_is_told(compare: Callable[..., tuple[int, str]], tmp_path: Path) -> None:
    kept = tmp_path / "kept.jsonl"
    assert compare("--kept", kept)[0] == 0

    def other_token(answer: dict[str, Any]) -> None:
        if answer["number"] == 2:
            answer["tokens"][7] += 1

    changed(kept, other_token)
    status, told = compare("--kept", kept)
    assert status == 1
    assert "1 answers differ\nquestion 2 differs at token 7: " in told
    changed(kept, lambda answer: answer.update(accepted={}))
    changed(kept, lambda answer: answer["tokens"].__setitem__(7, answer["tokens"][7] - (answer["number"] == 2)))
    status, told = compare("--kept", kept)
    assert (status, told.endswith("0 answers differ\n")) == (1, True)  # nothing was drafted
