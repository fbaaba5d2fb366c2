"""The script that kills and stops commands: real ones pass, what is wrong is found, and campaigns go on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
FAULTS = ROOT / "scripts/faults"
ODD = """
import sys
from processes import Running

PROGRAM = '''
import os, subprocess, sys, time
subprocess.Popen(["sleep", "600"], start_new_session=True)
open(".x.lock", "w").close()
with open("half", "w") as file:
    for _ in range(2):
        file.write("half")
        file.flush()
        time.sleep(2)
'''


class Target:
    life_s = 1.5

    def __init__(self, home, model):
        self.home = home

    def prepare(self):
        pass

    def start(self):
        self.home.empty()
        return Running([sys.executable, "-c", PROGRAM], self.home.environment("odd"), self.home.data)

    def has_written(self):
        return self._text() != ""

    def judge(self, running):
        return ["half a file"] if self._text() == "half" else []

    def finish(self, running):
        return [] if running.wait() == 0 and self._text() == "halfhalf" else ["it did not go on"]

    def _text(self):
        path = self.home.data / "half"
        return path.read_text() if path.exists() else ""
"""

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


def faults(*arguments: str, folder: Path = FAULTS) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(folder), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=600, env=environment)


def rows(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_what_there_is_to_kill() -> None:
    listed = faults("--list").stdout.split()
    assert listed == sorted(path.stem for path in (FAULTS / "targets").glob("[a-z]*.py"))
    assert faults("kill", "nothing").returncode == 2


def test_killed_commands_leave_nothing_half_and_a_campaign_goes_on(tmp_path: Path, tiny_model: Path) -> None:
    given = ("--model", str(tiny_model), "--device", "reference", "--out", str(tmp_path))
    done = faults("kill", "pull", "batch", "--times", "2", *given)
    assert done.returncode == 0, done.stdout + done.stderr
    before = [rows(tmp_path / f"kill-{name}-1.jsonl") for name in ("pull", "batch")]
    assert [[row["number"] for row in each] for each in before] == [[0, 1], [0, 1]]
    assert "before" not in [each[1]["phase"] for each in before]  # near the first bytes, on a fast machine at the end
    done = faults("kill", "pull", "--times", "3", *given)
    assert done.returncode == 0, done.stdout + done.stderr
    now = rows(tmp_path / "kill-pull-1.jsonl")
    assert now[:2] == before[0]
    assert [row["number"] for row in now] == [0, 1, 2]
    assert "| kill pull | 3 |" in done.stdout


def test_what_is_wrong_is_found(tmp_path: Path) -> None:
    copy = tmp_path / "faults"
    (copy / "targets").mkdir(parents=True)
    for path in FAULTS.glob("*.py"):
        (copy / path.name).write_text(path.read_text())
    (copy / "targets" / "odd.py").write_text(ODD)
    done = faults("kill", "odd", "--times", "4", "--out", str(tmp_path / "out"), folder=copy)
    assert done.returncode == 1, done.stdout + done.stderr
    found = [str(row["problems"]) for row in rows(tmp_path / "out" / "kill-odd-1.jsonl")]
    assert "half a file" in found[1]
    assert ".x.lock" in found[1]
    assert "lives on" not in found[1]  # where all were killed
    assert "lives on: sleep 600" in found[3]
    done = faults("stop", "odd", "--times", "1", "--seconds", "0.5", "--out", str(tmp_path / "out"), folder=copy)
    (row,) = rows(tmp_path / "out" / "stop-odd-1.jsonl")
    assert "it did not go on" not in str(row["problems"])
    assert "lives on: sleep 600" in str(row["problems"])
    assert done.returncode == 1
