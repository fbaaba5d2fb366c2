"""The fuzzer: its targets run, inputs can be made again, and what goes wrong in the child is told."""

from __future__ import annotations

import importlib.util
import json
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
FUZZ = ROOT / "scripts/fuzz"
PARTS = "__main__.py", "campaign.py", "mutation.py", "summary.py", "worker.py"


def fuzz(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(FUZZ), *arguments], capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize(
    "target", ["answer", "chat_markdown", "chats_db", "gguf", "kept_files", "lines", "profile", "wheel"]
)
def test_a_target_runs(target: str) -> None:
    done = fuzz(target, "--inputs", "60")
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{target}: 60 inputs" in done.stdout
    assert " 0 read whole" not in done.stdout  # some changes leave an input valid


def test_what_there_is_to_fuzz() -> None:
    listed = fuzz("--list").stdout.split()
    assert listed == sorted(path.stem for path in (FUZZ / "targets").glob("[a-z]*.py"))
    assert fuzz("nothing").returncode == 2


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("raise KeyError(data)", "KeyError"),
        ("import os; os.kill(os.getpid(), 11)", "the process ended with -11"),
        ("import time; time.sleep(1.1)", "took 1.1 s"),
    ],
)
def test_what_goes_wrong_is_told_once_and_saved(tmp_path: Path, body: str, told: str) -> None:
    copy = tmp_path / "fuzz"
    (copy / "targets").mkdir(parents=True)
    for name in (*PARTS, "targets/__init__.py"):
        (copy / name).write_text((FUZZ / name).read_text())
    program = f"def seeds(): return [b'seed']\ndef run(data):\n    if len(data) < 4:\n        {body}\n"
    (copy / "targets/odd.py").write_text(program)
    found = tmp_path / "found"
    command = [sys.executable, str(copy), "odd", "--inputs", "40", "--out", str(found)]
    paths = {"PYTHONPATH": str(ROOT), "PATH": ""}
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, env=paths)
    assert done.returncode == 1
    assert done.stdout.count("odd ") == 1
    assert told in done.stdout
    (saved,) = found.glob("odd-*")
    number = int(saved.name.removeprefix("odd-"))
    assert saved.read_bytes() == _input(copy, number)
    row = fuzz("--table", str(found)).stdout.splitlines()[2]
    assert row.startswith("| odd | 40 |")
    assert told.split(" 1.1")[0] in row


def _input(folder: Path, number: int) -> bytes:
    input_of = runpy.run_path(str(folder / "mutation.py"))["input_of"]
    return input_of(object(), [b"seed"], 1, number)  # type: ignore[no-any-return]


def test_a_campaign_goes_on_where_it_ended(tmp_path: Path) -> None:
    """Two pieces are the same inputs as one, and the table adds them up."""
    whole, pieces = tmp_path / "whole", tmp_path / "pieces"
    fuzz("profile", "--inputs", "60", "--out", str(whole))
    for n_inputs in ("30", "60", "60"):
        fuzz("profile", "--inputs", n_inputs, "--out", str(pieces), "--go-on")
    rows = [fuzz("--table", str(folder)).stdout.splitlines()[2].split(" | ") for folder in (whole, pieces)]
    assert rows[0][:2] == rows[1][:2] == ["| profile", "60"]
    assert rows[0][4:] == rows[1][4:]
    firsts = [json.loads(line)["first"] for line in (pieces / "profile.jsonl").read_text().splitlines()]
    assert firsts[0] == 0
    assert 30 in firsts


def test_a_campaign_ends_when_its_time_is_over(tmp_path: Path) -> None:
    done = fuzz("profile", "--inputs", "100000000", "--seconds", "1", "--out", str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    assert 0 < int(done.stdout.split()[1]) < 100_000_000


def test_guidance_needs_its_package() -> None:
    if importlib.util.find_spec("atheris") is not None:
        pytest.skip("atheris is there")
    done = fuzz("profile", "--atheris")
    assert done.returncode == 1
    assert "pip install atheris" in done.stderr
