"""On a home that cannot be written, dependencies are as silent as elsewhere: no attempt, no line about it."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.privacy.sandbox import EDGEINFER, Sandbox
from tests.privacy.test_audit import require
from tests.privacy.tracing import findings, missing_reason, traced

pytestmark = pytest.mark.skipif(missing_reason() is not None, reason=missing_reason() or "")


@pytest.fixture
def read_only_home(tmp_path: Path) -> Iterator[Path]:
    home = tmp_path / "read-only"
    home.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "ro", "tmpfs", home], capture_output=True, check=False)
    if mounted.returncode != 0:
        pytest.skip("mounting a read-only folder needs more rights")
    yield home
    subprocess.run(["umount", home], check=True)


@pytest.mark.parametrize("device", ["onnx", "openvino"])
def test_a_read_only_home_brings_no_reports(
    tmp_path: Path, read_only_home: Path, tiny_model: Path, device: str
) -> None:
    require(device)
    sandbox = Sandbox(tmp_path, tmp_path / "kernels")
    trace = tmp_path / "trace"
    done = subprocess.run(
        traced([*EDGEINFER, "run", "-m", str(tiny_model), "--device", device, "--max-tokens", "8", "the hen"], trace),
        env={**sandbox.environment, "HOME": str(read_only_home)},
        cwd=sandbox.work,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "telemetry" not in done.stderr.lower()
    folders = (".cache/edgeinfer", ".config/edgeinfer", ".local/share/edgeinfer")
    own = [sandbox.temporary, *(read_only_home / name for name in folders)]
    assert not findings(trace, own, sandbox.work)
