"""`edgeinfer plan` counts the part of a KV cache that is in memory, and says what is on disk."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from edgeinfer.engine.measure.profiles import ProfileStore, fingerprint_of
from edgeinfer.scheduling.machine.topology import read_topology
from edgeinfer.text_values import size_text
from tests.app.test_cli_plan import planned, run
from tests.conftest import write_tiny_llama
from tests.unit.scheduling.profiles import machine


@pytest.fixture
def tiny(home: Path, tmp_path: Path) -> Path:
    """A tiny model, on a machine that was measured before."""
    known = {"fingerprint": fingerprint_of(read_topology()), "measured": "2026-11-22 12:00 UTC", "idle_share": 1.0}
    ProfileStore().save(replace(machine(), **known))
    return write_tiny_llama(tmp_path / "tiny.gguf")


def test_a_kv_cache_on_disk_counts_as_asked_for(tiny):
    here = ("-m", str(tiny), "--approx", "kv=256")
    whole, filed = planned(*here)["memory"], planned(*here, "--kv-ram", "100kB")["memory"]
    assert whole["kv_file_bytes"] == 0
    assert whole["kv_bytes"] - filed["kv_bytes"] == filed["kv_file_bytes"] - 100_000 > 0
    text = run(*here, "--kv-ram", "100kB").stdout
    assert f"(on disk {size_text(filed['kv_file_bytes'])})" in text
    assert "a part of the KV cache in RAM" in text
    refused = run("-m", str(tiny), "--kv-ram", "100kB")
    assert (refused.exit_code, "with --approx kv=N" in refused.stderr) == (1, True)
