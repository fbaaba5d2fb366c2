"""Packing matrices of a file: row order, head padding, zero rows, tied weights."""

from __future__ import annotations

from collections.abc import Iterator

import gguf
import numpy as np
import pytest

from edgeinfer.backends import weights
from edgeinfer.backends.base import no_progress
from edgeinfer.backends.cpu.layout import Heads
from edgeinfer.backends.cpu.packing import CHUNK_ROWS, PackedWeights, row_order
from edgeinfer.models.gguf import GGUFFile
from edgeinfer.ops import Unpair, Weight
from tests.unit.backends.cpu.kernel_calls import same_bits
from tests.unit.backends.cpu.panel_reading import read_values

Type = gguf.GGMLQuantizationType
TYPES = {"q4_0": Type.Q4_0, "q8_0": Type.Q8_0, "q4_1": Type.Q4_1, "f16": Type.F16, "f32": Type.F32, "bf16": Type.BF16}
ROWS, COLUMNS = 100, 96


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GGUFFile]:
    path = tmp_path_factory.mktemp("packing") / "matrices.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    random = np.random.default_rng(0)
    for name, kind in TYPES.items():
        rows = CHUNK_ROWS + 24 if name == "q8_0" else ROWS
        values = random.standard_normal((rows, COLUMNS)).astype(np.float32)
        writer.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)
    writer.add_tensor("vector", random.standard_normal(24).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with GGUFFile.open(path) as opened:
        yield opened


def packed(file: GGUFFile, weight: Weight, heads: Heads | None = None) -> np.ndarray:
    """What the packed matrix holds: float32[rows of all panels, columns]."""
    store = PackedWeights(file, "portable")
    store.pack([(weight, heads)], 2, no_progress)
    matrix = store.matrix(weight, heads)
    assert matrix.data.ctypes.data % 64 == 0
    assert store.resident_bytes == matrix.data.nbytes
    return read_values(matrix.panel, matrix.data, weight.columns)


@pytest.mark.parametrize("name", TYPES)
def test_rows_are_packed_in_order_and_padded_with_zeros(file: GGUFFile, name: str) -> None:
    n_rows = file.tensors[name].shape[0]
    held = packed(file, Weight(name, 0, n_rows, COLUMNS))
    assert len(held) == -(-n_rows // 16) * 16
    assert same_bits(held[:n_rows], weights.matrix(file, Weight(name, 0, n_rows, COLUMNS)))
    assert not held[n_rows:].any()


@pytest.mark.parametrize("name", TYPES)
def test_row_ranges(file: GGUFFile, name: str) -> None:
    whole = weights.matrix(file, Weight(name, 0, ROWS, COLUMNS))
    assert same_bits(packed(file, Weight(name, 37, 79, COLUMNS))[:42], whole[37:79].copy())


@pytest.mark.parametrize("name", ["q4_0", "f16"])
def test_heads_are_padded_one_by_one_and_unpaired(file: GGUFFile, name: str) -> None:
    whole = weights.matrix(file, Weight(name, 0, ROWS, COLUMNS))
    held = packed(file, Weight(name, 4, 76, COLUMNS, Unpair(24, 16)), Heads(3, 24)).reshape(3, 32, COLUMNS)
    for head in range(3):
        rows = whole[4 + head * 24 : 28 + head * 24]
        expected = np.concatenate([rows[0:16:2], rows[1:16:2], rows[16:]])
        assert same_bits(held[head, :24], expected)
        assert not held[head, 24:].any()


def test_a_tied_matrix_is_packed_once(file: GGUFFile) -> None:
    weight = Weight("q8_0", 0, 64, COLUMNS)
    seen: list[tuple[str, int, int]] = []
    store = PackedWeights(file, "portable")
    store.pack([(weight, None), (weight, None), (weight, Heads(2, 32))], 2, lambda *step: seen.append(step))
    assert [step[1:] for step in seen] == [(1, 2), (2, 2)]
    assert store.matrix(weight, None) is store.matrix(weight, None)


def test_row_order() -> None:
    weight = Weight("any", 0, 20, 32)
    assert row_order(weight, None).tolist() == [*range(20), *[-1] * 12]
    assert row_order(weight, Heads(2, 10)).tolist() == [*range(10), *[-1] * 6, *range(10, 20), *[-1] * 6]


def test_unpaired_vectors(file: GGUFFile) -> None:
    whole = weights.vector(file, Weight("vector", 0, 24, 1))
    turned = weights.vector(file, Weight("vector", 0, 24, 1, Unpair(12, 4)))
    order = [0, 2, 1, 3, *range(4, 12)]
    assert turned.tolist() == whole[[*order, *[12 + row for row in order]]].tolist()
