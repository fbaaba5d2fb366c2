"""A model's bundle file as the engine has it made: what is left alone, what is mended, what is made anew."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from edgeinfer.backends.cpu.bundles.bundling import Bundling
from edgeinfer.backends.cpu.bundles.header import header_of, identity_of
from edgeinfer.backends.cpu.bundles.writing import pack_lock
from edgeinfer.errors import BadBundle, PackFailed
from edgeinfer.models.file_facts import fingerprint
from edgeinfer.models.load import Model, open_model
from edgeinfer.offload.bundle_file import WHOLE, bundle_path, bundles_folder, part_path, remove_bundles
from edgeinfer.steps import no_progress
from tests.golden.goldens import DATA


@pytest.fixture
def model() -> Iterator[Model]:
    with open_model(DATA / "llama-q8_0.gguf") as opened:
        yield opened


@pytest.fixture
def bundling(model: Model, tmp_path: Path) -> Bundling:
    return Bundling(model, tmp_path / "model.bundles", 2)


def test_a_whole_file_is_left_alone(bundling: Bundling) -> None:
    assert bundling.pack(no_progress).state == "packed"
    before = bundling.path.stat()
    for done in (bundling.pack(no_progress), bundling.repair(no_progress)):
        assert (done.state, done.nbytes, done.n_repaired) == ("present", before.st_size, 0)
    assert bundling.path.stat().st_mtime_ns == before.st_mtime_ns
    assert bundling.path.stat().st_ino == before.st_ino


def test_a_checksum_that_packing_does_not_give_has_everything_packed_again(bundling: Bundling, model: Model) -> None:
    bundling.pack(no_progress)
    whole = bundling.path.read_bytes()
    with bundling.open() as bundles:
        checksums = [bundles.checksum(bundle.number) for bundle in bundles.contents.bundles]
        identity = identity_of(bundles.contents, fingerprint(model.file))
    checksums[1] += 1
    with bundling.path.open("r+b") as file:
        file.write(header_of(identity, bytes(16), np.array(checksums, np.uint64)))
    assert [damage.bundle.number for damage in bundling.damage(no_progress)] == [1]
    assert bundling.repair(no_progress).state == "packed"
    assert bundling.path.read_bytes() == whole


def test_repair_waits_for_nobody(bundling: Bundling) -> None:
    bundling.pack(no_progress)
    with bundling.open() as bundles, bundling.path.open("r+b") as file:
        file.seek(bundles.offset(0))
        file.write(bytes(100))
    with pack_lock(bundling.path), pytest.raises(PackFailed, match=r"packing .* already"):
        bundling.repair(no_progress)
    assert bundling.repair(no_progress).n_repaired == 1


def test_packing_waits_for_who_packs_the_same_model(bundling: Bundling) -> None:
    bundling.pack(no_progress)
    whole = bundling.path.read_bytes()
    bundling.path.unlink()
    told: list[str] = []
    packing = ExitStack()
    packing.enter_context(pack_lock(bundling.path))

    def progress(what: str, done: int, total: int) -> None:
        told.append(what)
        if what.startswith("waiting") and told.count(what) == 2:
            bundling.path.write_bytes(whole)
            packing.close()

    assert bundling.pack(progress).state == "present"
    assert told[0] == f"waiting for process {os.getpid()}, which is packing {bundling.path.name}"


def test_a_file_of_another_model_is_replaced_by_repair_alone(bundling: Bundling, tmp_path: Path) -> None:
    bundling.pack(no_progress)
    with open_model(DATA / "llama-q4_0.gguf") as other:
        others = Bundling(other, bundling.path, 2)
        with pytest.raises(BadBundle, match="another model"):
            others.pack(no_progress)
        bundling.open().close()
        assert others.repair(no_progress).state == "packed"
    with pytest.raises(BadBundle, match="another model"):
        bundling.open()


def test_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGEINFER_HOME", str(tmp_path))
    assert bundles_folder() == tmp_path / "bundles"
    first = bundle_path("some/model name", "0123456789abcdef0123456789abcdef")
    assert first == tmp_path / "bundles" / "some_model_name-0123456789abcdef.bundles"
    first.parent.mkdir()
    first.write_bytes(b"12345")
    part_path(first).write_bytes(b"678")
    assert bundle_path("renamed", "0123456789abcdef0123456789abcdef") == first
    assert bundle_path("renamed", "1123456789abcdef0123456789abcdef").name == "renamed-1123456789abcdef.bundles"
    whole = bundle_path("renamed", "0123456789abcdef0123456789abcdef", WHOLE)
    assert whole.name == "renamed-0123456789abcdef.whole.bundles"
    whole.write_bytes(b"9")
    assert bundle_path("again", "0123456789abcdef0123456789abcdef", WHOLE) == whole
    assert bundle_path("again", "0123456789abcdef0123456789abcdef") == first
    assert remove_bundles(first) == 8
    assert remove_bundles(first) == 0
    monkeypatch.delenv("EDGEINFER_HOME")
    assert bundles_folder().name == "bundles"
