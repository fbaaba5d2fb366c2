"""`edgeinfer bench` as users run it: rows, ratios, order, peers that fail, and errors that say what works."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from edgeinfer.app.bench import machine, measurement
from edgeinfer.app.bench.machine import MemoryBandwidth
from edgeinfer.app.bench.request import VERIFY_TOKENS
from edgeinfer.app.cli import build_app

READ_BYTES_S = 2e9
QUICK = ("--device", "reference", "--prompt-tokens", "8", "--gen", "4", "--runs", "2")


@pytest.fixture(autouse=True)
def _quick(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test reads gigabytes or waits for the machine to be idle; those have tests of their own."""
    memory = MemoryBandwidth(("avx2",), "avx2", READ_BYTES_S, "read_one_stream", 2 * READ_BYTES_S)
    monkeypatch.setattr(machine, "read_memory", lambda cores, model_bytes: memory)
    monkeypatch.setattr(measurement, "idle_share", lambda: 1.0)


def bench(model: Path, *arguments: str) -> Result:
    return CliRunner().invoke(build_app(), ["bench", "-m", str(model), *QUICK, *arguments])


def measured(model: Path, *arguments: str) -> dict[str, Any]:
    result = bench(model, *arguments, "--json")
    assert result.exit_code == 0, result.output
    data: dict[str, Any] = json.loads(result.stdout)
    return data


def test_the_json_of_passes_at_two_depths(tiny_model: Path) -> None:
    data = measured(tiny_model, "--tests", "prefill,decode,verify", "--depth", "0,6", "--threads", "1")
    found = [(row["test"], row["n"], row["depth"]) for row in data["rows"]]
    verify = [("verify", n, depth) for depth in (0, 6) for n in VERIFY_TOKENS]
    assert found == [("prefill", 8, 0), ("prefill", 8, 6), ("decode", 4, 0), ("decode", 4, 6), *verify]
    for row in data["rows"]:
        tok_s = row["tok_s"]
        assert row["executor"] == "reference"
        assert 0 < tok_s["min"] <= tok_s["median"] <= tok_s["max"]
        assert row["share_of_bandwidth"] == pytest.approx(row["bytes_per_token"] * tok_s["median"] / READ_BYTES_S)
        assert row["problem"] is None
    assert set(data["verify_cost"]) == {str(n) for n in VERIFY_TOKENS}
    assert data["verify_cost"]["1"] == 1.0
    assert (data["machine"]["read_gb_s"], data["machine"]["read_model_gb_s"]) == (2.0, 4.0)
    assert data["ratios"] == []
    assert (data["idle_before"], data["idle_after"], data["threads"]) == (1.0, 1.0, 1)
    decode = [row for row in data["rows"] if row["test"] == "decode"]
    assert decode[1]["bytes_per_token"] > decode[0]["bytes_per_token"]
    assert all(row["accepted_per_step"] == 1.0 for row in decode)


def test_a_script_takes_turns_with_ours_and_each_ratio_is_of_neighbours(tiny_model: Path, tmp_path: Path) -> None:
    script = tmp_path / "peer.py"
    script.write_text("print(50.0)")
    name = f"python:{script}"
    data = measured(tiny_model, "--tests", "decode", "--runs", "3", "--against", name)
    assert [run["executor"] for run in data["runs"]] == ["reference", name] * 3
    ours = [run["tok_s"]["4"] for run in data["runs"][::2]]
    (ratio,) = data["ratios"]
    assert (ratio["test"], ratio["executor"], ratio["against"]) == ("decode", "reference", name)
    assert ratio["min"] == pytest.approx(min(ours) / 50)
    assert ratio["max"] == pytest.approx(max(ours) / 50)
    theirs = next(row for row in data["rows"] if row["executor"] == name)
    assert theirs["tok_s"]["median"] == pytest.approx(50.0)
    assert theirs["bytes_per_token"] is theirs["share_of_bandwidth"] is None


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_a_peer_that_crashes_is_a_row_and_the_rest_goes_on(tiny_model: Path, tmp_path: Path) -> None:
    crash, works = tmp_path / "crash.py", tmp_path / "works.py"
    crash.write_text("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)")
    works.write_text("print(10)")
    against = f"python:{crash},python:{works}"
    data = measured(tiny_model, "--tests", "decode", "--against", against)
    rows = {row["executor"]: row for row in data["rows"]}
    assert rows[f"python:{crash}"]["problem"].startswith("crashed (signal 11")
    assert rows[f"python:{crash}"]["tok_s"] == {"median": None, "min": None, "max": None}
    assert rows[f"python:{works}"]["tok_s"]["median"] == pytest.approx(10)
    assert [ratio["against"] for ratio in data["ratios"]] == [f"python:{works}"]
    shown = bench(tiny_model, "--tests", "decode", "--against", against)
    assert shown.exit_code == 0
    assert f"python:{crash}: crashed (signal 11" in shown.stdout


def test_another_device_of_ours_is_a_peer(tiny_model: Path) -> None:
    data = measured(tiny_model, "--tests", "decode", "--against", "null")
    assert [run["executor"] for run in data["runs"]] == ["reference", "null"] * 2
    assert data["ratios"][0]["against"] == "null"
    assert [row["bytes_per_token"] > 0 for row in data["rows"]] == [True, False]  # null holds no weights


def test_chat_reads_and_answers_whole_conversations(tiny_model: Path, tmp_path: Path) -> None:
    questions = tmp_path / "questions.jsonl"
    questions.write_text('{"category": "rain", "turns": ["the rain", "the inn"]}\n{"category": "tea", "turns": ["an"]}')
    data = measured(tiny_model, "--tests", "chat", "--questions", str(questions), "--against", "null")
    row = data["rows"][0]
    assert (row["test"], row["n"], row["accepted_per_step"]) == ("chat", 12, 1.0)
    assert set(row["categories"]) == {"rain", "tea"}


def test_a_start_is_timed_warm_and_cold(tiny_model: Path) -> None:
    data = measured(tiny_model, "--tests", "start", "--runs", "1", "--threads", "1")
    assert [(row["test"], row["cold"]) for row in data["rows"]] == [("start", False), ("start", True)]
    assert data["rows"][0]["problem"] is None
    assert data["rows"][0]["seconds"]["median"] > 0
    assert data["rows"][0]["tok_s"]["median"] is None


def test_a_busy_machine_is_flagged(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measurement, "idle_share", lambda: 0.0)
    data = measured(tiny_model, "--tests", "prefill", "--runs", "1")
    assert data["machine"]["read_busy"] is True
    assert [(run["busy"], run["repeats"]) for run in data["runs"]] == [(True, 2)]
    assert data["rows"][0]["busy_runs"] == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--against", "llama"), "choose from llama-cpp-python, onnxruntime-genai, openvino-genai, cpu"),
        (("--tests", "speed"), "choose from prefill, decode, verify, chat, start"),
        (("--tests", "chat"), "--questions FILE"),
        (("--depth", "deep"), "such as 0,2048"),
        (("--device", "gpu"), "a GPU is cuda (NVIDIA's) or openvino:gpu (Intel's)"),
        (("--device", "cpu,abacus"), "--device needs a device, not 'abacus'"),
    ],
)
def test_errors_say_what_works(tiny_model: Path, arguments: tuple[str, ...], message: str) -> None:
    result = bench(tiny_model, *arguments)
    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stdout == ""


def test_no_model_is_the_error_of_every_command(tmp_path: Path) -> None:
    result = bench(tmp_path / "missing.gguf")
    assert result.exit_code == 1
    assert "missing.gguf" in result.stderr


def test_what_our_own_engine_cannot_do_is_an_error(tiny_model: Path) -> None:
    result = bench(tiny_model, "--tests", "start", "--threads", "0")
    assert result.exit_code == 2
    assert "--threads needs a whole number from 1 up, not '0'" in result.stderr


@pytest.mark.peer
@pytest.mark.skipif(importlib.util.find_spec("llama_cpp") is None, reason="llama-cpp-python is not installed")
def test_llama_cpp_python_runs_beside_ours(tiny_model: Path) -> None:
    data = measured(tiny_model, "--tests", "prefill,decode,verify", "--depth", "0,6", "--against", "llama-cpp-python")
    theirs = [row for row in data["rows"] if row["executor"] == "llama-cpp-python"]
    assert [row["problem"] for row in theirs] == [None] * len(theirs)
    assert {(row["test"], row["depth"]) for row in theirs} == {
        (test, depth) for test in ("prefill", "decode", "verify") for depth in (0, 6)
    }
    assert len(data["ratios"]) == len(theirs)
