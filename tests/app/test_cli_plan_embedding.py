"""edgeinfer plan of models that embed texts and write none."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from edgeinfer.app.cli import build_app
from edgeinfer.engine.measure.profiles import ProfileStore, fingerprint_of
from edgeinfer.scheduling.machine.topology import read_topology
from tests.golden.goldens import DATA
from tests.unit.scheduling.profiles import machine


@pytest.mark.parametrize("name", ["bert", "gemma-embedding"])
def test_a_model_that_writes_nothing_is_told_no_decoding(home: Path, name: str) -> None:
    measured = {"fingerprint": fingerprint_of(read_topology()), "measured": "2026-11-22 12:00 UTC", "idle_share": 1.0}
    ProfileStore().save(replace(machine(), **measured))
    result = CliRunner().invoke(build_app(), ["plan", "-m", str(DATA / "embedding" / f"{name}-q8_0.gguf")])
    assert result.exit_code == 0, result.output
    assert ", embedded after " in result.stdout
    assert "decode" not in result.stdout
    assert "drafts" not in result.stdout
