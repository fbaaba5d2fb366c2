"""Files that are not what they should be, and disks that err: every one is refused with a message, none is used."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from edgeinfer.backends.cpu.bundles.bundling import find_damage
from edgeinfer.backends.cpu.bundles.contents import Contents
from edgeinfer.backends.cpu.bundles.file import BundleFile
from edgeinfer.backends.cpu.bundles.header import VERSION, identity_of
from edgeinfer.errors import BadBundle, DeviceFailed, EngineClosed
from edgeinfer.jit.library import KernelLibrary
from edgeinfer.steps import no_progress
from tests.golden.goldens import DATA
from tests.unit.backends.cpu.bundles.bundle_faults import Faults
from tests.unit.backends.cpu.bundles.bundle_models import Packable, assert_holds, packable, page_memory


@pytest.fixture(scope="module")
def model() -> Iterator[Packable]:
    with packable(DATA / "llama-q8_0.gguf") as opened:
        yield opened


@pytest.fixture(scope="module")
def whole(model: Packable, library: KernelLibrary, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The bytes of a whole file."""
    return model.pack(tmp_path_factory.mktemp("whole") / "model.bundles", library).path.read_bytes()


@pytest.fixture
def path(whole: bytes, tmp_path: Path) -> Path:
    """A copy of the file to damage."""
    copy = tmp_path / "model.bundles"
    copy.write_bytes(whole)
    return copy


def flip(path: Path, offset: int) -> None:
    """Turn one bit of the byte at a place."""
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 0x10]))


def read_all(bundles: BundleFile, direct: bool = True) -> None:
    """Read every bundle, which checks it."""
    source = bundles.source(direct)
    try:
        for bundle in bundles.contents.bundles:
            bundles.read(bundle.number, page_memory(bundle.padded_bytes), source)
    finally:
        source.close()


def test_any_flipped_byte_of_the_header_is_found(model: Packable, path: Path, whole: bytes) -> None:
    identity = identity_of(model.contents, model.fingerprint)
    for offset in range(identity.checked_bytes + 16):
        flip(path, offset)
        with pytest.raises(BadBundle, match="edgeinfer pack MODEL"):
            model.open(path)
        flip(path, offset)
    assert path.read_bytes() == whole
    model.open(path).close()


@pytest.mark.parametrize("direct", [True, False])
def test_a_flipped_byte_of_any_bundle_is_found_when_it_is_read(model: Packable, path: Path, direct: bool) -> None:
    for bundle in model.contents.bundles:
        with model.open(path) as bundles:
            places = [0, bundle.nbytes // 2, bundle.nbytes - 1]
            for place in places:
                flip(path, bundles.offset(bundle.number) + place)
                with pytest.raises(BadBundle) as refused:
                    read_all(bundles, direct)
                flip(path, bundles.offset(bundle.number) + place)
        message = str(refused.value)
        assert f"bundle {bundle.number} ({bundle.stage}, {bundle.nbytes} bytes at " in message
        assert str(path) in message
        assert "--repair" in message


def test_damage_is_listed_in_full(model: Packable, path: Path) -> None:
    with model.open(path) as bundles:
        assert find_damage(bundles, no_progress) == []
        for number in (0, 2):
            flip(path, bundles.offset(number) + 100)
        assert [damage.bundle.number for damage in find_damage(bundles, no_progress)] == [0, 2]


@pytest.mark.parametrize("n_bytes", [0, 5, 8, 60, 4000, 4096, -4096, -1])
def test_a_file_that_is_cut_short_is_refused(model: Packable, path: Path, n_bytes: int) -> None:
    size = path.stat().st_size
    os.truncate(path, n_bytes if n_bytes >= 0 else size + n_bytes)
    with pytest.raises(BadBundle, match=r"cut short|not a bundle file"):
        model.open(path)


def test_a_file_with_something_behind_it_is_refused(model: Packable, path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"more")
    with pytest.raises(BadBundle, match="bytes, not"):
        model.open(path)


def test_a_file_of_another_model_is_refused(model: Packable, path: Path) -> None:
    with pytest.raises(BadBundle, match="another model"):
        BundleFile.open(path, model.contents, "another fingerprint")


def test_a_file_of_another_version_is_refused(model: Packable, path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(8)
        file.write((VERSION + 1).to_bytes(4, "little"))
    with pytest.raises(BadBundle, match=rf"version {VERSION + 1}, this edgeinfer reads {VERSION}.*--repair"):
        model.open(path)


def test_a_file_with_another_layout_is_refused(model: Packable, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundles = model.contents.bundles
    first = replace(bundles[0], parts=tuple(replace(part, offset=part.offset + 64) for part in bundles[0].parts))
    with pytest.raises(BadBundle, match="another way"):
        BundleFile.open(path, Contents(model.contents.matrices, (first, *bundles[1:])), model.fingerprint)
    with pytest.raises(BadBundle, match="another way"):
        BundleFile.open(path, Contents(model.contents.matrices, bundles[:-1]), model.fingerprint)
    monkeypatch.setattr("edgeinfer.backends.cpu.bundles.header.LAYOUT_VERSION", 99)
    with pytest.raises(BadBundle, match="another way"):
        model.open(path)


@pytest.mark.parametrize("content", [b"GGUF" * 2000, b"edgePART" + bytes(5000), bytes(9000)])
def test_other_files_are_refused(model: Packable, tmp_path: Path, content: bytes) -> None:
    other = tmp_path / "other"
    other.write_bytes(content)
    with pytest.raises(BadBundle, match=r"not a bundle file|half-written"):
        model.open(other)


def test_what_cannot_be_opened_is_refused(model: Packable, tmp_path: Path) -> None:
    with pytest.raises(BadBundle, match=r"No such file.*--repair"):
        model.open(tmp_path / "missing")
    with pytest.raises((BadBundle, DeviceFailed), match=r"directory.*--repair"):
        model.open(tmp_path)


def test_a_bundle_is_checked_once(model: Packable, path: Path) -> None:
    with model.open(path) as bundles:
        read_all(bundles)
        damaged = np.zeros(model.contents.bundles[0].nbytes, np.uint8)
        bundles.check(0, damaged)
        with pytest.raises(BadBundle, match="wrong checksum"):
            bundles.check(0, damaged, again=True)


def test_read_errors_name_file_and_place(model: Packable, path: Path) -> None:
    bundle = model.contents.bundles[1]
    with model.open(path) as bundles:
        place = bundles.offset(1)
    with (
        BundleFile.open(path, model.contents, model.fingerprint, Faults(fails_at=place + 5).open) as bundles,
        pytest.raises(DeviceFailed) as failed,
    ):
        read_all(bundles)
    assert str(path) in str(failed.value)
    assert f"bundle 1 ({bundle.stage}, {bundle.nbytes} bytes at {place}) cannot be read" in str(failed.value)
    assert os.strerror(5) in str(failed.value)
    with pytest.raises(DeviceFailed, match="its header cannot be read"):
        BundleFile.open(path, model.contents, model.fingerprint, Faults(fails_at=9).open)


def test_wrong_bytes_from_the_disk_are_found(model: Packable, path: Path) -> None:
    with model.open(path) as bundles:
        place = bundles.offset(2)
    with (
        BundleFile.open(path, model.contents, model.fingerprint, Faults(flips_at=place + 7).open) as bundles,
        pytest.raises(BadBundle, match=r"bundle 2 .*wrong checksum"),
    ):
        read_all(bundles)


@pytest.mark.parametrize(("direct", "at_most"), [(True, 4096), (False, 4096), (False, 1000), (True, 4608)])
def test_short_and_slow_reads_are_put_together(
    model: Packable, path: Path, library: KernelLibrary, direct: bool, at_most: int
) -> None:
    faults = Faults(at_most=at_most, delay_s=0.0005)
    with BundleFile.open(path, model.contents, model.fingerprint, faults.open) as bundles:
        source = bundles.source(direct)
        assert_holds(bundles, source, model.packed(library))
        source.close()
    assert max(faults.sizes) <= at_most


def test_a_file_that_is_cut_while_it_is_open_is_found(model: Packable, path: Path) -> None:
    with model.open(path) as bundles:
        source = bundles.source()
        os.truncate(path, bundles.offset(len(model.contents.bundles) - 1) + 512)
        last = model.contents.bundles[-1]
        with pytest.raises(BadBundle, match=r"ends after \d+ bytes"):
            bundles.read(last.number, page_memory(last.padded_bytes), source)
        source.close()


def test_an_open_file_is_not_changed_by_another_in_its_place(
    model: Packable, path: Path, library: KernelLibrary
) -> None:
    with model.open(path) as bundles:
        source = bundles.source()
        other = path.with_name("other")
        other.write_bytes(b"\x77" * path.stat().st_size)
        os.replace(other, path)
        assert_holds(bundles, source, model.packed(library))
        with pytest.raises(BadBundle, match="was replaced while it was in use"):
            bundles.source()
        source.close()


def test_content_that_changes_in_place_is_found_at_first_use(model: Packable, path: Path) -> None:
    with model.open(path) as bundles:
        source = bundles.source()
        with path.open("r+b") as file:
            file.seek(bundles.offset(1))
            file.write(bytes(300))
        memory = page_memory(model.contents.bundles[1].padded_bytes)
        with pytest.raises(BadBundle, match="bundle 1 "):
            bundles.read(1, memory, source)
        source.close()


def test_direct_reads_that_are_refused_go_through_the_page_cache(
    model: Packable, path: Path, library: KernelLibrary, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.open

    def refusing(name: str, flags: int, *more: int) -> int:
        if flags & os.O_DIRECT:
            raise OSError(22, "Invalid argument")
        return real(name, flags, *more)

    if not hasattr(os, "O_DIRECT"):
        pytest.skip("this system has no O_DIRECT")
    with model.open(path) as bundles:
        monkeypatch.setattr(os, "open", refusing)
        source = bundles.source(direct=True)
        monkeypatch.undo()
        assert not source.is_direct
        assert_holds(bundles, source, model.packed(library))
        source.close()


def test_a_closed_file_says_so(model: Packable, path: Path) -> None:
    bundles = model.open(path)
    bundles.close()
    bundles.close()
    with pytest.raises(EngineClosed, match="is closed"):
        bundles.source()


def test_a_moved_file_stays_usable(model: Packable, path: Path, tmp_path: Path, library: KernelLibrary) -> None:
    moved = tmp_path / "elsewhere" / "any name"
    moved.parent.mkdir()
    shutil.move(path, moved)
    with model.open(moved) as bundles:
        source = bundles.source()
        assert_holds(bundles, source, model.packed(library))
        source.close()
