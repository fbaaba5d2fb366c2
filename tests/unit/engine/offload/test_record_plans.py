"""Layers that could be stored as records: without the folders that do so, a model streams like any other."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgeinfer import registry
from edgeinfer.backends.cpu.bundles.contents import contents_of
from edgeinfer.engine.offload.record_plans import record_plans
from edgeinfer.engine.offload.weight_placement import chosen_layout, has_records
from edgeinfer.models.load import open_model
from tests.golden.goldens import DATA


def test_without_the_folders_layers_are_read_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "optional", lambda *_: None)
    with open_model(DATA / "llama-relu-sparse-q8_0.gguf") as model:
        held = contents_of(model.spec, model.file.tensors)
        assert held.records is None
        assert not any(bundle.run for bundle in held.bundles)
        assert record_plans() is None
        assert not has_records(model.spec, model.file.tensors)
        kept = chosen_layout(model.spec, model.file, held.data_bytes - 1, None, "it")
    assert not kept.by_records
    assert kept.flash_bytes > 0
    assert not kept.why


@pytest.mark.parametrize("left", [False, True])
def test_a_folder_that_is_gone_adds_nothing(left: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    if left:  # compiled files of deleted modules stay behind
        (tmp_path / "gone_records" / "__pycache__").mkdir(parents=True)
    assert registry.optional("gone_records", "entry", "ENTRY") is None


def test_a_folder_adds_what_its_module_exports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "own_records").mkdir()
    (tmp_path / "own_records" / "__init__.py").touch()
    (tmp_path / "own_records" / "entry.py").write_text("ENTRY = 7\n")
    assert registry.optional("own_records", "entry", "ENTRY") == 7
