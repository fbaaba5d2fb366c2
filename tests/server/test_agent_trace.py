"""The script that counts what an agent's conversation makes a server read, with and without restarts."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from scripts import agent_trace
from tests.conftest import write_tiny_llama


def test_a_conversation_with_and_without_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model = write_tiny_llama(tmp_path / "tiny.gguf", context=16384)
    questions = tmp_path / "questions.jsonl"
    questions.write_text(json.dumps({"category": "rag", "turns": ["what the river says of stones " * 40]}))
    given = ["agent_trace.py", "--model", str(model), "--questions", str(questions), "--turns", "3", "--every", "2"]
    given += ["--words", "20", "--json"]
    monkeypatch.setattr(sys, "argv", given)
    assert agent_trace.main() == 0
    told = json.loads(capsys.readouterr().out)
    one, other = (told[name]["turns"] for name in ("one_process", "restarts"))
    assert told["same_answers"]
    assert [turn["is_first"] for turn in one] == [True, False, False]
    assert [turn["is_first"] for turn in other] == [True, False, True]
    assert [turn["n_prompt"] for turn in one] == [turn["n_prompt"] for turn in other]
    assert one[0]["n_prompt"] > 1000
    assert one[0]["n_cached"] == 0
    assert all(turn["n_cached"] > one[0]["n_prompt"] - 64 for turn in (*one[1:], *other[1:]))
    n_read = [sum(turn["n_prompt"] - turn["n_cached"] for turn in turns) for turns in (one, other)]
    assert told["ratio"] == n_read[1] / n_read[0] < 1.2
