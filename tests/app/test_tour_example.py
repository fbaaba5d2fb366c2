"""The tour of the Python API: it runs, and says what works when there is no such model."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TOUR = Path(__file__).parents[2] / "examples" / "tour.py"


def tour(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "error", str(TOUR), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


@pytest.mark.model
def test_it_runs(starter_model: Path, home: Path) -> None:
    (home / "models").mkdir(parents=True)
    os.symlink(starter_model, home / "models" / starter_model.name)
    ran = tour()
    assert (ran.returncode, "packing weights: done" in ran.stderr) == (0, True), ran.stderr
    for told in ("<LLM SmolLM2-135M-Instruct", "{'fruit': ", "price 2.5\n", "['user', 'assistant']\n", "(576,)\n"):
        assert told in ran.stdout


def test_a_missing_model_is_told_in_one_line(home: Path) -> None:
    ran = tour("nothing")
    assert ran.returncode == 1
    assert ran.stderr.startswith("no model is called 'nothing'")
    assert ran.stderr.count("\n") == 1
