"""Weights filled from a bundle file: the very panels that packing makes, wholly or not at all."""

from __future__ import annotations

import os
import shutil
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from edgeinfer.backends.cpu.bundles.file import BundleFile
from edgeinfer.backends.cpu.bundles.filling import cached_share, fill, is_faster
from edgeinfer.backends.cpu.memory.packing import PackedWeights
from edgeinfer.errors import BadBundle, DeviceFailed
from edgeinfer.jit.library import KernelLibrary
from edgeinfer.steps import no_progress
from tests.golden.goldens import DATA
from tests.unit.backends.cpu.bundles.bundle_faults import Faults
from tests.unit.backends.cpu.bundles.bundle_models import GOLDEN_MODELS, Packable, packable


def wanted_of(model: Packable) -> list[tuple]:
    """All matrices of a model, as `PackedWeights.pack` is asked for them."""
    return [(matrix.key[0], matrix.heads) for matrix in model.contents.matrices.values()]


@pytest.mark.parametrize("path", GOLDEN_MODELS, ids=lambda path: path.stem)
def test_filled_weights_are_packed_weights(path: Path, library: KernelLibrary, tmp_path: Path) -> None:
    with packable(path) as model:
        expected = model.packed(library)
        filled = PackedWeights(model.model.file, "portable", library)
        with model.open(model.pack(tmp_path / "model.bundles", library).path) as bundles:
            fill(filled, bundles, wanted_of(model), 3, no_progress)
        assert filled.resident_bytes == expected.resident_bytes
        for weight, heads in wanted_of(model):
            matrix, packed = filled.matrix(weight, heads), expected.matrix(weight, heads)
            assert matrix.panel == packed.panel
            assert np.array_equal(matrix.data, packed.data)
            assert matrix.data.ctypes.data % 64 == 0


def test_some_matrices_are_filled_and_the_others_packed(library: KernelLibrary, tmp_path: Path) -> None:
    with packable(DATA / "gemma3-q8_0.gguf") as model:
        expected, wanted = model.packed(library), wanted_of(model)
        weights = PackedWeights(model.model.file, "portable", library)
        shown: list[tuple[str, int, int]] = []
        with model.open(model.pack(tmp_path / "model.bundles", library).path) as bundles:
            fill(weights, bundles, wanted[:2], 2, lambda *step: shown.append(step))
            fill(weights, bundles, [], 2, no_progress)
        assert shown[-1][1] == shown[-1][2] < len(model.contents.bundles)
        filled = {key for key in model.contents.matrices if key in weights}
        assert filled == set(list(model.contents.matrices)[:2])
        before = [weights.matrix(*each).data for each in wanted[:2]]
        weights.pack(wanted, 2, no_progress)
        assert [weights.matrix(*each).data is held for each, held in zip(wanted[:2], before, strict=True)] == [True] * 2
        for each in wanted:
            assert np.array_equal(weights.matrix(*each).data, expected.matrix(*each).data)


@pytest.mark.parametrize(("fault", "error"), [("fails_at", DeviceFailed), ("flips_at", BadBundle)])
def test_a_failure_leaves_the_weights_to_packing(
    library: KernelLibrary, tmp_path: Path, fault: str, error: type[Exception]
) -> None:
    with packable(DATA / "gemma3-q8_0.gguf") as model:
        path = model.pack(tmp_path / "model.bundles", library).path
        weights = PackedWeights(model.model.file, "portable", library)
        with model.open(path) as bundles:
            place = bundles.offset(len(model.contents.bundles) - 2)
        before = set(threading.enumerate())
        with (
            BundleFile.open(path, model.contents, model.fingerprint, Faults(**{fault: place}).open) as bundles,
            pytest.raises(error, match=str(path)),
        ):
            fill(weights, bundles, wanted_of(model), 2, no_progress)
        assert set(threading.enumerate()) <= before
        assert weights.resident_bytes == 0
        weights.pack(wanted_of(model), 2, no_progress)
        assert weights.resident_bytes == model.packed(library).resident_bytes


def drop_from_cache(path: Path) -> None:
    """Have nothing of a file in the page cache."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells what is in its page cache")
def test_packing_is_preferred_where_only_the_model_is_in_memory(library: KernelLibrary, tmp_path: Path) -> None:
    source = Path(shutil.copy(DATA / "gemma3-f32.gguf", tmp_path / "model.gguf"))
    with packable(source) as model:
        path = model.pack(tmp_path / "model.bundles", library).path
        path.read_bytes(), source.read_bytes()
        assert is_faster(path, model.model.file)
        drop_from_cache(path)
        if cached_share([path]) != 0:
            pytest.skip("this file system keeps its files in memory")
        assert cached_share([source]) == 1
        assert not is_faster(path, model.model.file)
        model.model.file.release()
        drop_from_cache(source)
        path.read_bytes()
        assert is_faster(path, model.model.file)
        assert cached_share([path]) == 1
    assert cached_share([tmp_path / "missing"]) is None
