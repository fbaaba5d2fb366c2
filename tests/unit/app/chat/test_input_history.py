"""The history of inputs: kept between runs and by several instances, and the walk through it."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeinfer.app.chat import input_history
from edgeinfer.app.chat.input_history import HistoryWalk, InputHistory


def test_entries_of_many_lines_come_back_in_the_next_run(tmp_path: Path) -> None:
    path = tmp_path / "kept" / "inputs.jsonl"
    first = InputHistory(path)
    for text in ("one", "two\nlines  \n\nü\u2028😀", "one", "  "):
        first.add(text)
    assert InputHistory(path).entries == first.entries == ("two\nlines  \n\nü\u2028😀", "one")


@pytest.mark.skipif(sys.platform == "win32", reason="no modes there")
def test_the_file_is_for_its_user_alone(tmp_path: Path) -> None:
    path = tmp_path / "inputs.jsonl"
    InputHistory(path).add("secret")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_two_instances_append_to_one_file(tmp_path: Path) -> None:
    path = tmp_path / "inputs.jsonl"
    one, two = InputHistory(path), InputHistory(path)
    one.add("a")
    two.add("b")
    one.add("c")
    assert InputHistory(path).entries == ("a", "b", "c")


def test_processes_lose_nothing_of_each_other_while_the_file_is_shortened(tmp_path: Path) -> None:
    path = tmp_path / "inputs.jsonl"
    old = [json.dumps(f"old {number}") for number in range(2 * input_history.ENTRIES_CAP + 10)]
    path.write_text("\n".join(old) + "\n")
    code = (
        "import sys; from pathlib import Path; from edgeinfer.app.chat.input_history import InputHistory\n"
        "for n in range(40): InputHistory(Path(sys.argv[1])).add(f'{sys.argv[2]} {n}')"
    )
    children = [subprocess.Popen([sys.executable, "-c", code, str(path), name]) for name in ("x", "y")]
    assert [child.wait(60) for child in children] == [0, 0]
    entries = InputHistory(path).entries
    assert {f"{name} {number}" for name in "xy" for number in range(40)} <= set(entries)
    assert len(entries) == input_history.ENTRIES_CAP
    assert len(path.read_bytes().splitlines()) < 2 * input_history.ENTRIES_CAP


@pytest.mark.usefixtures("uncollected")
def test_a_damaged_file_gives_what_it_has(tmp_path: Path) -> None:
    path = tmp_path / "inputs.jsonl"
    path.write_bytes(b'"good"\n{"no": 1}\n\xff\xfe\n"cut of\n' + b"[" * 100_000 + b'\n"also good"\n')
    assert InputHistory(path).entries == ("good", "also good")


def test_a_file_that_cannot_be_used_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "inputs.jsonl").mkdir()
    history = InputHistory(tmp_path / "inputs.jsonl")
    history.add("kept for this run")
    assert history.entries == ("kept for this run",)


def test_only_so_many_entries_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(input_history, "ENTRIES_CAP", 3)
    path = tmp_path / "inputs.jsonl"
    history = InputHistory(path)
    for number in range(8):
        history.add(str(number))
    history.add("x" * (input_history.ENTRY_CAP_CHARACTERS + 1))
    assert history.entries == InputHistory(path).entries == ("5", "6", "7")
    assert len(path.read_text().splitlines()) == 3
    assert os.listdir(tmp_path).count("inputs.jsonl") == 1


def test_the_walk_ends_at_the_draft() -> None:
    history = InputHistory()
    history.add("one")
    history.add("two")
    walk = HistoryWalk(history)
    assert walk.newer() is None
    assert [walk.older("draft"), walk.older("two"), walk.older("one")] == ["two", "one", None]
    assert [walk.newer(), walk.newer(), walk.newer()] == ["two", "draft", None]


@given(st.lists(st.text(min_size=1, max_size=8)), st.lists(st.booleans()))
def test_any_walk_shows_entries_or_the_draft(texts: list[str], steps: list[bool]) -> None:
    history = InputHistory()
    for text in texts:
        history.add(text)
    walk, shown = HistoryWalk(history), "the draft"
    for back in steps:
        moved = walk.older(shown) if back else walk.newer()
        shown = shown if moved is None else moved
        assert shown in (*history.entries, "the draft")
    while (moved := walk.newer()) is not None:
        shown = moved
    assert shown == "the draft"
