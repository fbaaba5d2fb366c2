"""The starter model with a quarter of its weights in memory, in a control group that would kill it for more.

Its peak of resident memory is not asserted: that counts mapped pages of libraries, which differ by 65 MB between two
installations of the same packages, and which the system may take back.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.memory_cap import MemoryCap

OTHER_BYTES = 200 << 20
CONTEXT = 512
KV_BYTES = 30 * 2 * 3 * 64 * 2 * (CONTEXT + 5 * 64)


def answer(model: Path, ram_bytes: int | None, *options: str) -> dict[str, object]:
    """What `run` says, in a control group if its memory for weights is limited."""
    command = [sys.executable, "-m", "edgeinfer", "run", "-m", str(model), "--device", "cpu", "--raw", "--json"]
    command += ["--temp", "0", "--ctx", str(CONTEXT), "--max-tokens", "24", *options, "The steam engine"]
    if ram_bytes is None:
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    else:
        with MemoryCap(ram_bytes + KV_BYTES + OTHER_BYTES) as cap:
            limited = cap.command([*command, "--ram", str(ram_bytes)])
            done = subprocess.run(limited, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    found: dict[str, object] = json.loads(done.stdout)
    return found


@pytest.mark.model
def test_a_quarter_of_the_weights_within_a_limit_of_memory(starter_model: Path) -> None:
    try:
        MemoryCap(1 << 30).__exit__(None, None, None)
    except OSError as reason:
        pytest.skip(f"no control group with a limit of memory can be made here: {reason}")
    ram_bytes = starter_model.stat().st_size // 4
    plain, drafted = (answer(starter_model, ram_bytes, "--spec", spec) for spec in ("off", "auto"))
    whole = answer(starter_model, None, "--spec", "off")
    assert plain["tokens"] == drafted["tokens"] == whole["tokens"]
    assert whole["weights_read_bytes"] == 0
    for found in (plain, drafted):
        assert int(str(found["weights_read_bytes"])) > starter_model.stat().st_size // 2
