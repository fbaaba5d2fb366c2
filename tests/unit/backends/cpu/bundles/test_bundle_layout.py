"""Bundle files hold the panels that packing makes, however they are read, and as earlier versions laid them out."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import numpy as np
import pytest

from edgeinfer.backends.cpu.bundles.file import at_a_time
from edgeinfer.backends.cpu.bundles.header import LAYOUT_VERSION, WORDS, checksum
from edgeinfer.jit.library import KernelLibrary
from edgeinfer.models.quants import FORMATS
from edgeinfer.offload.bundle import Bundle
from edgeinfer.offload.bundle_file import open_source
from tests.unit.backends.cpu.bundles.bundle_models import GOLDEN_MODELS, assert_holds, packable
from tests.unit.backends.cpu.packing_calls import pack_rows

COLUMNS = 512
PANELS = {
    "bf16": "095dc5986430f1bd",
    "f16": "095dc5986430f1bd",
    "f32": "249e1355285d286d",
    "iq4_nl": "c0f7a9fdc25ab658",
    "iq4_xs": "e0eff7fbf4caf3e8",
    "mxfp4": "73609e399a902267",
    "q2_k": "e927b34a6189a879",
    "q3_k": "acb39304e8577c67",
    "q4_0": "c0f7a9fdc25ab658",
    "q4_1": "3f5cad9529ef4dd6",
    "q4_k": "21080282346dcfad",
    "q5_0": "183b262573a37539",
    "q5_1": "5b3e9798cd36c318",
    "q5_k": "e3853563164e324a",
    "q6_k": "d51b1d3f42048713",
    "q8_0": "1331966ad7dd1063",
}
"""Of layout version 2: digests of 32 packed rows."""


def packed_digest(library: KernelLibrary, name: str) -> str:
    """A digest of the panels of rows whose bytes are all different from their neighbours."""
    form = FORMATS.get(name)
    row_bytes = COLUMNS // form.block_size * form.block_bytes
    rows = (np.arange(32 * row_bytes, dtype=np.uint64) * 2654435761 >> 11 & 255).astype(np.uint8)
    panels = pack_rows(library, form, rows.reshape(32, row_bytes), COLUMNS)
    return hashlib.blake2b(panels.tobytes(), digest_size=8).hexdigest()


@pytest.mark.parametrize("name", PANELS)
def test_panels_of_this_layout_version_stay_as_they_are(name: str, library: KernelLibrary) -> None:
    assert LAYOUT_VERSION == 2
    assert packed_digest(library, name) == PANELS[name], (
        "packing gives other bytes than bundle files of this layout version hold: raise LAYOUT_VERSION, and record the "
        "new digests here"
    )


def test_a_file_whose_mount_is_gone_closes_without_an_error(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(8192))
    source = open_source(path, True)
    os.close(source.descriptor)  # closing it again fails, as closing does on a network mount that is gone
    source.close()
    source.close()


def test_a_closed_file_is_not_read_again(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(8192))
    source = open_source(path, False)
    source.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        source.read_into(memoryview(bytearray(4096)), 0)


@pytest.mark.parametrize("path", GOLDEN_MODELS, ids=lambda path: path.stem)
@pytest.mark.parametrize("direct", [True, False])
def test_bundles_hold_the_panels_that_are_packed_at_load(
    path: Path, direct: bool, library: KernelLibrary, tmp_path: Path
) -> None:
    with packable(path) as model:
        packed = model.pack(tmp_path / "model.bundle", library)
        assert packed.nbytes == packed.path.stat().st_size
        assert packed.kept_bytes == 0
        with model.open(packed.path) as bundles:
            assert all(bundles.offset(bundle.number) % 4096 == 0 for bundle in bundles.contents.bundles)
            source = bundles.source(direct)
            assert_holds(bundles, source, model.packed(library))
            source.close()
    assert [entry.name for entry in tmp_path.iterdir()] == ["model.bundle"]


def test_packing_is_the_same_every_time(library: KernelLibrary, tmp_path: Path) -> None:
    with packable(GOLDEN_MODELS[0]) as model:
        files = [model.pack(tmp_path / name, library).path.read_bytes() for name in ("first", "second")]
    assert files[0] == files[1]


@pytest.mark.parametrize("n_bytes", [1, 7, 8, 4096, 8 * WORDS, 8 * WORDS + 3, 300_000])
def test_every_changed_byte_and_moved_page_changes_the_checksum(n_bytes: int) -> None:
    random = np.random.default_rng(n_bytes)
    data = random.integers(0, 256, n_bytes, dtype=np.uint8)
    value = checksum(data)
    assert 0 < value < 1 << 64
    assert checksum(data.copy()) == value
    for place in random.integers(0, n_bytes, 50):
        changed = data.copy()
        changed[place] ^= 1 << random.integers(0, 8)
        assert checksum(changed) != value
    if n_bytes > 8192:
        swapped = data.copy()
        swapped[:4096], swapped[4096:8192] = data[4096:8192], data[:4096]
        assert checksum(swapped) != value
    assert checksum(np.append(data, np.uint8(0))) != value
    assert checksum(data[:-1]) != value


def test_the_checksum_of_nothing_but_zeros_depends_on_their_number() -> None:
    assert len({checksum(np.zeros(n_bytes, np.uint8)) for n_bytes in (0, 8, 16, 4096)}) == 4


def test_few_large_bundles_are_in_memory_at_a_time() -> None:
    bundles = [Bundle(number, "blk.0", 0, n_bytes, ()) for number, n_bytes in enumerate((1 << 20, 30 << 20))]
    assert at_a_time(bundles[:1], 8) == 8
    assert at_a_time(bundles, 8) == 2
    assert at_a_time([Bundle(0, "blk.0", 0, 500 << 20, ())], 8) == 1
    assert at_a_time([], 8) == 8
