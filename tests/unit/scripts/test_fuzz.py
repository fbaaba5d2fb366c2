"""The fuzzer: its targets run, inputs can be made again, and what goes wrong in the child is told."""

from __future__ import annotations

import random
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
FUZZ = ROOT / "scripts/fuzz"


def fuzz(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(FUZZ), *arguments], capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize("target", ["gguf", "profile", "chat_json", "chat_markdown"])
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
    for name in ("__main__.py", "mutation.py", "worker.py", "targets/__init__.py"):
        (copy / name).write_text((FUZZ / name).read_text())
    program = f"def seeds(): return [b'seed']\ndef run(data):\n    if len(data) < 4:\n        {body}\n"
    (copy / "targets/odd.py").write_text(program)
    command = [sys.executable, str(copy), "odd", "--inputs", "40", "--out", str(tmp_path / "found")]
    paths = {"PYTHONPATH": str(ROOT), "PATH": ""}
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, env=paths)
    assert done.returncode == 1
    assert done.stdout.count("odd ") == 1
    assert told in done.stdout
    (saved,) = (tmp_path / "found").iterdir()
    number = saved.name.removeprefix("odd-")
    assert saved.read_bytes() == _mutated(copy, number)


def _mutated(folder: Path, number: str) -> bytes:
    mutated = runpy.run_path(str(folder / "mutation.py"))["mutated"]
    return mutated([b"seed"], random.Random(f"1 {number}"))  # type: ignore[no-any-return]
