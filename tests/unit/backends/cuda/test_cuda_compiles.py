"""Kernels compiled for real GPUs without one, where NVIDIA's compiler library is installed (nvidia-nvvm)."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.unit.backends.cuda.simulated import ROOT

MODELS = ["llama-q8_0", "llama-k", "qwen2-q4_0", "gemma2-bf16", "phi3-f16", "mistral-window-q8_0", "minicpm3-q8_0"]
PROBE = "from edgeinfer.backends.cuda.driver import require_compiler; require_compiler()"


@pytest.mark.parametrize("capability", ["7.5", "9.0"])
def test_kernels_compile_to_what_was_meant(capability: str) -> None:
    """No double precision, no arrays in slow local memory; vector loads and dot products of bytes where they belong."""
    environment = {key: value for key, value in os.environ.items() if key != "NUMBA_ENABLE_CUDASIM"}
    probe = subprocess.run([sys.executable, "-c", PROBE], env=environment, capture_output=True, text=True, check=False)
    if probe.returncode:
        pytest.skip(f"{probe.stderr.strip().splitlines()[-1]}")
    command = [sys.executable, "-m", "tests.unit.backends.cuda.compiling", capability, *MODELS]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    lines = [line.split() for line in done.stdout.splitlines()]
    assert len(lines) > 60
    for name, *marks in lines:
        assert ".f64" not in marks, name
        assert "__local_depot" not in marks, name
        if name == "integer_product":
            assert {".v4.", "dp4a", "shfl.sync"} <= set(marks)
        elif name == "float_product":
            assert {".v4.", "shfl.sync"} <= set(marks)
