"""No kernel of active neurons reads or writes outside its buffers: forbidden pages would end the process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[5]


@pytest.mark.skipif(sys.platform != "linux", reason="uses mprotect")
def test_kernels_of_neurons_stay_within_their_buffers() -> None:
    command = [sys.executable, "-m", "tests.unit.backends.cpu.neurons.guarded_neurons"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-2000:]
