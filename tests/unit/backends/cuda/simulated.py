"""Runs check files in a child process under Numba's CUDA simulator, whose flag is read when Numba is imported."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[3]


def simulate(name: str, lanes: int) -> None:
    """Run the checks of a file beside this one with warps of `lanes`; its output is shown where they fail."""
    environment = {**os.environ, "NUMBA_ENABLE_CUDASIM": "1", "EDGEINFER_CUDASIM_LANES": str(lanes)}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(HERE / name)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stdout[-20000:] + done.stderr[-4000:]
    assert " passed" in done.stdout
    assert "skipped" not in done.stdout
