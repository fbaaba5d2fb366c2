"""No kernel reads or writes outside its buffers: forbidden pages on both sides would end the process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[5]

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="uses mprotect")


def run(case: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.unit.backends.cpu.guarded", case]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)


@pytest.mark.parametrize("case", ["products", "split floats", "packing", "attention", "models"])
def test_kernels_stay_within_their_buffers(case: str) -> None:
    done = run(case)
    assert done.returncode == 0, done.stderr[-2000:]


def test_the_guards_are_there() -> None:
    assert run("stray").returncode < 0
