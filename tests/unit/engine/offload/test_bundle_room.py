"""Room for bundle files: refused with numbers before anything is written or fetched, and what was packed counts."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from edgeinfer.app.plans.fit import check_fits
from edgeinfer.engine.kv.limits import limits_for
from edgeinfer.engine.offload import bundle_room, weight_placement
from edgeinfer.engine.offload.bundle_room import require_room_after_download, require_room_for_bundles
from edgeinfer.engine.offload.weight_placement import WeightBudget, place_and_pack
from edgeinfer.errors import DoesNotFit, PackFailed
from edgeinfer.models.download.header import file_header
from edgeinfer.models.file_facts import fingerprint
from edgeinfer.models.load import open_model
from edgeinfer.offload.bundle_file import bundles_folder, part_path
from edgeinfer.scheduling.machine import topology
from tests.tiny_models import write_hollow_llama

MB = 10**6


def free(patch: pytest.MonkeyPatch, n_bytes: int) -> None:
    """Have every disk tell that so much of it is free."""
    real = shutil.disk_usage("/")
    patch.setattr(shutil, "disk_usage", lambda path: real._replace(free=n_bytes))


def test_what_was_packed_before_counts(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = bundles_folder() / "m.bundles"
    free(monkeypatch, 7 * MB)
    with pytest.raises(PackFailed, match=r"m does not fit .* needs 10\.0 MB .* 7\.0 MB are free.*EDGEINFER_HOME"):
        require_room_for_bundles("m", path, 10 * MB)
    assert not path.parent.exists()
    path.parent.mkdir(parents=True)
    part_path(path).write_bytes(bytes(4 * MB))
    require_room_for_bundles("m", path, 10 * MB)


def test_a_model_and_its_bundle_file_share_a_disk(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    free(monkeypatch, 19 * MB)
    with pytest.raises(DoesNotFit, match=r"with its bundle file of 10\.0 MB needs 20\.0 MB .* 19\.0 MB are free"):
        require_room_after_download("m", 10 * MB, 10 * MB)
    monkeypatch.setattr(bundle_room, "_disk", lambda folder: hash(folder))
    require_room_after_download("m", 10 * MB, 10 * MB)


def test_a_disk_that_does_not_tell_stops_nobody(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(path: object) -> object:
        raise OSError

    monkeypatch.setattr(shutil, "disk_usage", unknown)
    require_room_for_bundles("m", bundles_folder() / "m.bundles", 10 * MB)
    require_room_after_download("m", 10 * MB, 10 * MB)


def test_nothing_is_begun_without_room(tiny_model: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    free(monkeypatch, 100_000)
    with open_model(tiny_model, 256) as model:
        told = model.spec, model.file, "tiny", fingerprint(model.file), limits_for(256), WeightBudget(300_000)
        with pytest.raises(PackFailed, match=r"needs .* 100\.0 kB are free"):
            place_and_pack(*told)
    assert not bundles_folder().exists()


def test_a_download_that_needs_a_bundle_file_is_judged_with_it(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_hollow_llama(tmp_path / "wide.gguf")
    size = path.stat().st_size
    monkeypatch.setattr(topology, "available_bytes", lambda: size // 2)
    monkeypatch.setattr(weight_placement, "memory_for_model", lambda: size // 2)
    free(monkeypatch, size * 3)
    header = file_header(path)
    assert "read from disk for every token" in (check_fits(header, size) or "")
    free(monkeypatch, size * 3 // 2)
    with pytest.raises(DoesNotFit, match="with its bundle file of"):
        check_fits(header, size)
    monkeypatch.setattr(topology, "available_bytes", lambda: size * 2)
    assert check_fits(header, size) is None  # all of it fits in memory
