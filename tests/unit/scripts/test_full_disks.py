"""Scripts that fill disks under commands and make them err: they run, and find what is left half done."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
FAULTS = ROOT / "scripts/faults"
sys.path.append(str(FAULTS))

import commands  # noqa: E402  # found by the path above
import disk  # noqa: E402


def test_numbers_of_free_bytes() -> None:
    found = disk.sizes(1 << 20, 6)
    assert found == sorted(set(found))
    assert found[:2] == [0, disk.STEP_BYTES]
    assert found[-1] > 1 << 20
    assert all(size % disk.STEP_BYTES == 0 for size in found)


@pytest.mark.skipif(sys.platform != "linux" or os.geteuid() != 0, reason="mounts a tmpfs")
def test_a_command_is_tried_with_more_and_more_room(tiny_model: Path) -> None:
    command = [sys.executable, str(FAULTS / "disk.py"), "config", "--model", str(tiny_model), "--steps", "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    if "mount" in done.stderr and done.returncode:
        pytest.skip("no small file system can be mounted here")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "No space left on device" in done.stdout
    assert "× whole" in done.stdout


def test_half_of_something_is_found(tmp_path: Path) -> None:
    home = commands.Home(tmp_path / "home", tmp_path / "model.gguf", 0)
    home.model.write_bytes(bytes(100))
    models = home.data / "models"
    models.mkdir()
    assert commands.pulled(home, commands.Ended(0, "")) is None
    shutil.copy(home.model, models / "model.gguf")
    assert commands.pulled(home, commands.Ended(0, "")) == 1
    (models / "model.gguf").write_bytes(bytes(50))
    with pytest.raises(ValueError, match="not what was pulled"):
        commands.pulled(home, commands.Ended(0, ""))
    rows = [json.dumps({"index": number, "text": "x"}) for number in (0, 1, 1)]
    (home.folder / "answers.jsonl").write_text("\n".join(rows) + "\n")
    with pytest.raises(ValueError, match="twice"):
        commands.answered(home, commands.Ended(0, ""))


@pytest.mark.skipif(sys.platform != "linux" or shutil.which("gcc") is None, reason="gcc compiles a library for Linux")
def test_reads_writes_and_syncs_of_a_command_fail(tiny_model: Path) -> None:
    command = [sys.executable, str(FAULTS / "io_errors.py"), "config", "--model", str(tiny_model), "--steps", "2"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "cannot be read: Input/output error" in done.stdout
    assert done.stdout.count("cannot be written: Input/output error") >= 2
