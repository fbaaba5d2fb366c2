"""What `kv_ram` needs: it is refused, in words that say what would work, where it cannot be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from edgeinfer.backends.base import Limits
from edgeinfer.engine.loading import load
from edgeinfer.engine.opening.kv_ram import require_kv_ram, require_weights_in_memory
from edgeinfer.errors import BadSetting
from edgeinfer.load_options import LoadOptions
from edgeinfer.offload.weights import OffloadedWeights
from tests.resident import require_disk


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, r"needs a budget of attention.*--approx kv=N"),
        ({"approx": "prefill=512"}, r"needs a budget of attention.*--approx kv=N"),
        ({"approx": "kv=256", "device": "reference"}, r"reference has all of its KV cache in memory.*--device cpu"),
        ({"approx": "kv=256", "isolate": True}, r"leave out --isolate, or --kv-ram"),
    ],
    ids=str,
)
def test_what_it_needs_is_said(tiny_model: Path, options: dict[str, Any], words: str) -> None:
    with pytest.raises(BadSetting, match=words):
        load(tiny_model, kv_ram="1MB", **options)


def test_other_systems(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", "darwin")
    with pytest.raises(BadSetting, match=r"needs Linux.*--kv q8q4"):
        require_kv_ram(LoadOptions(approx="kv=256", kv_ram="1MB"))


@pytest.mark.parametrize(("value", "n_bytes"), [("48MB", 48_000_000), (5_000_000, 5_000_000), ("none", None)])
def test_sizes(value: str | int, n_bytes: int | None) -> None:
    assert LoadOptions(approx="kv=256", kv_ram=value).kv_ram_bytes == n_bytes


@pytest.mark.parametrize("value", ["20%", "0", "much", True, -1, "0MB"])
def test_what_is_no_size(value: object) -> None:
    with pytest.raises(BadSetting, match="a size such as 500MB"):
        LoadOptions(kv_ram=value)  # type: ignore[arg-type]


def test_weights_have_to_be_in_memory() -> None:
    stored = OffloadedWeights.__new__(OffloadedWeights)
    with pytest.raises(BadSetting, match=r"it has no room in memory for all of its weights.*--ram"):
        require_weights_in_memory("it", Limits(64, 1, kv_ram=5, stored=stored))
    require_weights_in_memory("it", Limits(64, 1, stored=stored))
    require_weights_in_memory("it", Limits(64, 1, kv_ram=5))


def test_one_that_is_enough_for_all_makes_no_file(tiny_model: Path, home: Path) -> None:
    with load(tiny_model, approx="kv=256", kv_ram="1GB") as llm:
        assert llm.info.need is not None
        assert llm.info.need.kv_file_bytes == 0
    assert not (home / "kv").exists()


def test_memory_counts_what_is_asked_for_and_the_file(tiny_model: Path, home: Path) -> None:
    require_disk(home)
    with load(tiny_model, approx="kv=256") as llm:
        whole = llm.info.need
    with load(tiny_model, approx="kv=256", kv_ram=100_000) as llm:
        need = llm.info.need
    assert whole is not None
    assert need is not None
    assert need.kv_file_bytes > 100_000
    assert whole.kv_bytes - need.kv_bytes == need.kv_file_bytes - 100_000
    assert f"(on disk {need.kv_file_bytes / 1e3:.1f} kB)" in need.parts_text
