"""Packing matrices of a file: row order, head padding, zero rows, shares of workers, tied weights."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Iterator

import gguf
import numpy as np
import pytest
from numpy.typing import NDArray

from edgeinfer.backends import weights
from edgeinfer.backends.cpu.layout.padding import PaddedHeads
from edgeinfer.backends.cpu.layout.panels import panel_for
from edgeinfer.backends.cpu.memory.packing import PackedWeights, row_order
from edgeinfer.graph.operands import RopePermutation, Weight
from edgeinfer.jit.library import KernelLibrary
from edgeinfer.models.gguf import GGUFFile
from edgeinfer.models.quants import FORMATS, BlockFormat
from edgeinfer.steps import no_progress
from tests.unit.backends.cpu.kernel_calls import same_bits
from tests.unit.backends.cpu.packing_calls import random_rows
from tests.unit.backends.cpu.panel_reading import read_values

Type = gguf.GGMLQuantizationType
NAMES = ("q4_0", "q8_0", "q4_1", "q4_k", "q6_k", "f16", "f32", "bf16")
TYPES = {"q4_0": Type.Q4_0, "q8_0": Type.Q8_0, "q4_1": Type.Q4_1, "f16": Type.F16, "f32": Type.F32, "bf16": Type.BF16}
ROWS, COLUMNS = 100, 96
K_COLUMNS = 512


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GGUFFile]:
    path = tmp_path_factory.mktemp("packing") / "matrices.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    random = np.random.default_rng(0)
    for name, kind in TYPES.items():
        values = random.standard_normal((ROWS, COLUMNS)).astype(np.float32)
        writer.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)
    for name in ("q4_k", "q6_k"):
        kind = Type[name.upper()]
        blocks = random_rows(FORMATS.get(name), ROWS, K_COLUMNS).reshape(ROWS, -1, FORMATS.get(name).block_bytes)
        for at in (0, 2) if name == "q4_k" else (208,):
            blocks[:, :, at : at + 2] = np.array([0.01], np.float16).view(np.uint8)
        writer.add_tensor(name, blocks.reshape(ROWS, -1), raw_dtype=kind)
    writer.add_tensor("vector", random.standard_normal(24).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with GGUFFile.open(path) as opened:
        yield opened


def columns_of(name: str) -> int:
    """Columns of a matrix of the file."""
    return K_COLUMNS if name.endswith("_k") else COLUMNS


def packed(
    file: GGUFFile, library: KernelLibrary, weight: Weight, heads: PaddedHeads | None = None, n_workers: int = 2
) -> NDArray[np.float32]:
    """What the packed matrix holds: float32[rows of all panels, columns]."""
    store = PackedWeights(file, "portable", library)
    store.pack([(weight, heads)], n_workers, no_progress)
    matrix = store.matrix(weight, heads)
    assert matrix.data.ctypes.data % 64 == 0
    assert store.resident_bytes == matrix.data.nbytes
    return read_values(matrix.panel, matrix.data, weight.columns)


@pytest.mark.parametrize("n_workers", [1, 3, 7])
@pytest.mark.parametrize("name", NAMES)
def test_rows_are_packed_in_order_and_padded_with_zeros(
    file: GGUFFile, library: KernelLibrary, name: str, n_workers: int
) -> None:
    weight = Weight(name, 0, ROWS, columns_of(name))
    held = packed(file, library, weight, n_workers=n_workers)
    assert len(held) == -(-ROWS // 32) * 32
    assert same_bits(held[:ROWS], weights.matrix(file, weight))
    assert not held[ROWS:].any()


@pytest.mark.parametrize("name", NAMES)
def test_row_ranges(file: GGUFFile, library: KernelLibrary, name: str) -> None:
    whole = weights.matrix(file, Weight(name, 0, ROWS, columns_of(name)))
    assert same_bits(packed(file, library, Weight(name, 37, 79, columns_of(name)))[:42], whole[37:79].copy())


@pytest.mark.parametrize("name", ["q4_0", "q6_k", "f16"])
def test_heads_are_padded_one_by_one_and_unpaired(file: GGUFFile, library: KernelLibrary, name: str) -> None:
    columns = columns_of(name)
    whole = weights.matrix(file, Weight(name, 0, ROWS, columns))
    held = packed(file, library, Weight(name, 4, 76, columns, RopePermutation(24, 16)), PaddedHeads(3, 24)).reshape(
        3, 32, columns
    )
    for head in range(3):
        rows = whole[4 + head * 24 : 28 + head * 24]
        expected = np.concatenate([rows[0:16:2], rows[1:16:2], rows[16:]])
        assert same_bits(held[head, :24], expected)
        assert not held[head, 24:].any()


@pytest.mark.parametrize("name", ["q4_0", "q4_k", "q6_k"])
def test_formats_without_a_layout_are_unpacked(
    file: GGUFFile, library: KernelLibrary, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    form = FORMATS.get(name)
    assert isinstance(form, BlockFormat)
    bare = dataclasses.replace(form, layout=None)
    monkeypatch.setattr("edgeinfer.backends.cpu.memory.packing.format_of", lambda _: bare)
    monkeypatch.setattr("edgeinfer.backends.cpu.memory.packing.format_of", lambda _: bare)
    weight = Weight(name, 3, ROWS, columns_of(name))
    store = PackedWeights(file, "portable", library)
    store.pack([(weight, None)], 2, no_progress)
    assert store.matrix(weight, None).panel == panel_for(bare)
    held = read_values(panel_for(bare), store.matrix(weight, None).data, weight.columns)
    assert same_bits(held[: ROWS - 3], weights.matrix(file, weight))
    assert not held[ROWS - 3 :].any()


def test_pages_of_the_file_are_given_back_on_the_way(
    file: GGUFFile, library: KernelLibrary, monkeypatch: pytest.MonkeyPatch
) -> None:
    given_back: list[int] = []
    monkeypatch.setattr("edgeinfer.backends.cpu.memory.packing.BATCH_BYTES", 2 * 40 * 102)
    monkeypatch.setattr(file, "release", lambda: given_back.append(1))
    store = PackedWeights(file, "portable", library)
    wanted = [(Weight("q8_0", start, start + 40, COLUMNS), None) for start in range(5)]
    store.pack(wanted, 2, no_progress)
    assert len(given_back) == 3


def test_a_failure_in_a_worker_is_reported_and_ends_packing(
    file: GGUFFile, library: KernelLibrary, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = PackedWeights(file, "portable", library)

    def fail(*arguments: int) -> None:
        raise MemoryError("no more")

    monkeypatch.setattr(store, "_pack_panels", fail)
    before = set(threading.enumerate())
    with pytest.raises(MemoryError, match="no more"):
        store.pack([(Weight("q8_0", 0, ROWS, COLUMNS), None)], 3, no_progress)
    assert set(threading.enumerate()) <= before


def test_a_tied_matrix_is_packed_once(file: GGUFFile, library: KernelLibrary) -> None:
    weight = Weight("q8_0", 0, 64, COLUMNS)
    seen: list[tuple[str, int, int]] = []
    store = PackedWeights(file, "portable", library)
    store.pack([(weight, None), (weight, None), (weight, PaddedHeads(2, 32))], 2, lambda *step: seen.append(step))
    assert [step[1:] for step in seen] == [(1, 2), (2, 2)]
    assert store.matrix(weight, None) is store.matrix(weight, None)


def test_row_order() -> None:
    weight = Weight("any", 0, 20, 32)
    assert row_order(weight, None).tolist() == [*range(20), *[-1] * 12]
    assert row_order(Weight("any", 0, 33, 32), None).tolist() == [*range(33), *[-1] * 31]
    assert row_order(weight, PaddedHeads(2, 10)).tolist() == [*range(10), *[-1] * 6, *range(10, 20), *[-1] * 6]


def test_unpaired_vectors(file: GGUFFile) -> None:
    whole = weights.vector(file, Weight("vector", 0, 24, 1))
    turned = weights.vector(file, Weight("vector", 0, 24, 1, RopePermutation(12, 4)))
    order = [0, 2, 1, 3, *range(4, 12)]
    assert turned.tolist() == whole[[*order, *[12 + row for row in order]]].tolist()
