"""Bundle files against the panels that packing at load makes, bit for bit, for every golden model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from edgeinfer.backends.cpu.bundles.file import at_a_time
from edgeinfer.backends.cpu.bundles.header import WORDS, checksum
from edgeinfer.jit.library import KernelLibrary
from edgeinfer.offload.bundle import Bundle
from tests.unit.backends.cpu.bundles.bundle_models import GOLDEN_MODELS, assert_holds, packable


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
