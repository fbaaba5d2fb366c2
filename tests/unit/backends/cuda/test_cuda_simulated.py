"""The CUDA device under Numba's simulator: every kernel and whole golden models, each in a process of its own."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.backends.cuda.simulated import ROOT, simulate

WAYS = tuple(f"| {way}: " for way in ("cpu", "static", "stream", "hetegen", "rows", "auto"))

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("numba_cuda") is None, reason="numba-cuda is not installed: pip install '.[cudasim]'"
)


def test_kernels_compute_what_their_twins_do() -> None:
    simulate("checks_kernels.py", lanes=2)


def test_models_are_those_of_transformers() -> None:
    simulate("checks_models.py", lanes=1)


def test_layers_keep_their_windows() -> None:
    simulate("checks_windows.py", lanes=1)


def test_weights_are_sent_ahead() -> None:
    simulate("checks_feeding.py", lanes=1)


def test_models_are_shared_with_the_cpu() -> None:
    simulate("checks_hybrids.py", lanes=1)


def test_the_gpu_check_runs(tmp_path: Path) -> None:
    """On the simulator; speeds are not looked at."""
    command = [sys.executable, "scripts/gpu_check.py", "--tiny", "--out", str(tmp_path / "new" / "card.md")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    text = (tmp_path / "new" / "card.md").read_text(encoding="utf-8")
    assert text.startswith("# The cuda device on simulator")
    assert "| phi3-f16 | f16 |" in text
    assert "WRONG" not in text
    shared = [line.split(" | ") for line in text.splitlines() if line.startswith(WAYS)]
    assert len(shared) == len(WAYS)
    assert all(cells[-1] == "right |" for cells in shared), text
    ways = {cells[0].split(":")[0].strip("| "): cells for cells in shared}
    assert ways["cpu"][1] == "0 %"
    assert 0 < int(ways["static"][1].removesuffix(" %")) < 100
    assert int(ways["stream"][1].removesuffix(" %")) + int(ways["stream"][2].removesuffix(" %")) == 100
    assert 0 < int(ways["hetegen"][1].removesuffix(" %")) < 100
