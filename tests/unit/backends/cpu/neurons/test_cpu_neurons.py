"""The layout of single neurons: every part comes back as it was, and sizes are what a header says."""

from __future__ import annotations

import numpy as np
import pytest

from edgeinfer.backends import weights
from edgeinfer.backends.cpu.layout.panels import FloatPanel, IntegerPanel, pack_codes, panel_for
from edgeinfer.backends.cpu.neurons.kernels.layout import (
    ColumnForm,
    NeuronLayout,
    codes_of_columns,
    column_form,
    columns_of,
    neuron_layout,
    panels_of_rows,
    rows_of_panels,
    rows_of_raw,
    shared_scales,
)
from edgeinfer.graph.ops.matmul import MatMul
from edgeinfer.jit.library import KernelLibrary
from edgeinfer.models.load import open_model
from edgeinfer.models.quants import FORMATS, BlockFormat, FloatFormat, format_of
from tests.golden.goldens import Golden
from tests.unit.backends.cpu.packing_calls import pack_rows, random_rows
from tests.unit.backends.cpu.panel_reading import bits_of

OPS = FORMATS.entries()


def panel_of(key: str) -> IntegerPanel | FloatPanel:
    """The panel of a format."""
    return panel_for(OPS[key])


INTEGERS = {key: panel for key in sorted(OPS) if isinstance(panel := panel_of(key), IntegerPanel)}
BY_ROWS = [key for key, panel in INTEGERS.items() if not panel.rows_share_bytes]
"""Formats whose panels can be taken apart row by row."""
KINDS = {
    "q4_0": ColumnForm("u4", -8),
    "q4_1": ColumnForm("u4", 0, True),
    "q5_0": ColumnForm("i8"),
    "q5_1": ColumnForm("i8", 0, True),
    "q8_0": ColumnForm("i8"),
    "iq4_nl": ColumnForm("i8"),
    "f16": ColumnForm("f16"),
    "bf16": ColumnForm("bf16"),
    "f32": ColumnForm("f32"),
}
MOVED = sorted(key for key, form in OPS.items() if isinstance(form, BlockFormat) and form.layout is not None)


@pytest.mark.parametrize("key", sorted(OPS))
def test_which_formats_have_columns(key: str) -> None:
    assert column_form(OPS[key]) == KINDS.get(key)
    if key in KINDS:
        assert ColumnForm.parse(KINDS[key].key) == KINDS[key]


@pytest.mark.parametrize("n_rows", [32, 64, 45])
@pytest.mark.parametrize("key", sorted(KINDS))
def test_columns_hold_the_codes_of_the_format(key: str, n_rows: int) -> None:
    form, n_columns = OPS[key], 96
    raw = random_rows(form, n_rows, n_columns, seed=n_rows)
    kept = KINDS[key]
    parts = [columns_of(form, raw, first, stop) for first, stop in ((0, 32), (32, 96))]
    assert all(part.shape[1] == kept.nbytes(n_rows) for part in parts)
    columns = np.concatenate(parts)
    if isinstance(form, FloatFormat):
        size = form.block_bytes
        assert np.array_equal(columns.reshape(96, -1, size).transpose(1, 0, 2)[:n_rows].reshape(n_rows, -1), raw)
        return
    codes = form.unpack(raw)
    assert np.array_equal(codes_of_columns(kept, columns, n_rows), codes.codes)
    scales, minima = shared_scales(form, raw, 4)
    assert scales.shape == (4, -(-n_rows // 32) * 32)
    assert np.array_equal(scales[:3, :n_rows].T.astype(np.float32), codes.scale, equal_nan=True)
    assert not scales[3:].any()
    assert not scales[:, n_rows:].any()
    assert (minima is None) == (codes.minimum is None)
    if minima is not None and codes.minimum is not None:
        assert np.array_equal(minima[:3, :n_rows].T.astype(np.float32), codes.minimum, equal_nan=True)


def test_four_bits_lie_as_they_are_said_to() -> None:
    """Row 5 of a run is the low half of byte 5, row 21 the high half."""
    form = OPS["q4_0"]
    raw = np.zeros((64, 18), np.uint8)
    raw[:, 2:] = 0x88
    raw[32 + 5, 2 + 3] = 0x8D
    raw[32 + 21, 2 + 3] = 0x81
    column = columns_of(form, raw, 0, 32)[3]
    assert column[16 + 5] == 0x1D
    assert set(column[[*range(16 + 5), *range(16 + 6, 32)]]) == {0x88}


@pytest.mark.parametrize("key", [key for key in MOVED if key in BY_ROWS])
def test_rows_of_panels_come_back(library: KernelLibrary, key: str) -> None:
    form = OPS[key]
    panel = panel_for(form)
    assert isinstance(panel, IntegerPanel)
    columns = 3 * panel.record_columns
    data = pack_rows(library, form, random_rows(form, 48, columns, seed=1), columns)
    rows = rows_of_panels(panel, data)
    layout = NeuronLayout(columns, 48, panel, ColumnForm("f16"))
    assert rows.shape == (48, layout.row_bytes)
    assert layout.row_bytes <= data.shape[1] / 16 + 2 * 3
    assert np.array_equal(panels_of_rows(panel, rows), data)
    mixed = np.random.default_rng(2).permutation(48)
    turned = panels_of_rows(panel, rows[mixed])
    for row, column in ((0, 0), (17, 5), (47, columns - 1), (31, panel.record_columns + 7)):
        for places, bit, width in bits_of(panel, column):
            expected = data[mixed[row] // 16, places[mixed[row] % 16]] >> bit
            assert (turned[row // 16, places[row % 16]] >> bit ^ expected) & ((1 << width) - 1) == 0


def test_layers_whose_rows_share_bytes_are_read_whole() -> None:
    assert neuron_layout(OPS["iq2_xs"], OPS["q4_0"], 256, 256) is None


@pytest.mark.parametrize("n_blocks", [1, 2, 5])
@pytest.mark.parametrize("key", BY_ROWS)
def test_rows_of_a_file_become_rows_of_panels(library: KernelLibrary, key: str, n_blocks: int) -> None:
    form = OPS[key]
    assert isinstance(form, BlockFormat)
    columns = n_blocks * form.block_size
    raw = random_rows(form, 16, columns, seed=n_blocks)
    panel = panel_for(form)
    assert isinstance(panel, IntegerPanel)
    if form.layout is None:
        expected = np.zeros((1, panel.panel_bytes(columns)), np.uint8)
        pack_codes(panel, form.unpack(raw), expected)
    else:
        expected = pack_rows(library, form, raw, columns)
    rows = rows_of_raw(form, raw[:13])
    assert np.array_equal(rows, rows_of_panels(panel, expected)[:13])


def test_records_and_sizes() -> None:
    layout = neuron_layout(OPS["q4_0"], OPS["q4_0"], 2048, 8192)
    assert layout is not None
    assert (layout.row_bytes, layout.column_bytes, layout.record_bytes) == (1152, 1024, 2176)
    assert layout.shared_bytes == 256 * 2048 * 2
    alone = neuron_layout(None, OPS["q4_1"], 768, 3072)
    assert alone is not None
    assert (alone.row_bytes, alone.column_at, alone.record_bytes) == (0, 0, 384)
    assert alone.shared_bytes == 2 * 96 * 768 * 2
    odd = neuron_layout(OPS["q8_0"], OPS["f16"], 96, 100)
    assert odd is not None
    random = np.random.default_rng(0)
    rows = random.integers(0, 256, (5, odd.row_bytes), dtype=np.uint8)
    columns = random.integers(0, 256, (5, odd.column_bytes), dtype=np.uint8)
    records = odd.records(rows, columns)
    assert records.shape == (5, odd.record_bytes)
    assert odd.record_bytes % 64 == odd.column_at % 64 == 0
    assert all(np.array_equal(*pair) for pair in zip(odd.parts(records), (rows, columns), strict=True))
    assert odd.n_blocks == 4


@pytest.mark.parametrize(
    "name", ["llama-relu-sparse-q4_1", "llama-relu-sparse-q8_0", "llama-relu2-k", "opt-sparse-q4_0"]
)
def test_layers_of_files_come_back(name: str) -> None:
    """Cut in parts as a writer would, of sizes that the header tells; codes and rows are the file's."""
    with open_model(Golden.read(name).model) as model:
        products = {op.weight.tensor: op.weight for op in model.spec.stages[1].ops if isinstance(op, MatMul)}
        forms = {tensor: format_of(model.file.tensors[tensor].ggml_type) for tensor in products}
        gated = "blk.0.ffn_gate.weight" in products
        up_name, down_name = "blk.0.ffn_up.weight", "blk.0.ffn_down.weight"
        up, down = forms[up_name] if gated else None, forms[down_name]
        width, n_neurons = model.spec.width, model.spec.ffn_width
        layout = neuron_layout(up, down, width, n_neurons)
        assert layout is not None
        up_rows, down_rows = (weights.raw_rows(model.file, products[each]) for each in (up_name, down_name))
        own = up_rows if gated else np.zeros((n_neurons, 0), np.uint8)
        assert up is None or isinstance(up, BlockFormat)
        parts = [layout.cut(up, own[first : first + 32], down, down_rows, first) for first in range(0, n_neurons, 32)]
        records = np.concatenate(parts)
        assert records.shape == (n_neurons, layout.record_bytes)
        rows, columns = layout.parts(records)
        assert isinstance(down, BlockFormat)
        codes = codes_of_columns(layout.down, np.ascontiguousarray(columns), width)
        assert np.array_equal(codes, down.unpack(np.ascontiguousarray(down_rows)).codes)
        if gated:
            assert up is not None
            assert np.array_equal(rows, rows_of_raw(up, up_rows))
            assert (layout.up is None) == (up is None)


@pytest.mark.parametrize(("up", "down"), [("q4_0", "q4_k"), ("f16", "q4_0"), (None, "q6_k"), ("q4_0", "mxfp4")])
def test_layers_that_are_read_whole(up: str | None, down: str) -> None:
    assert neuron_layout(None if up is None else OPS[up], OPS[down], 512, 1024) is None


def test_k_quants_have_rows_but_no_columns() -> None:
    layout = neuron_layout(OPS["q4_k"], OPS["q8_0"], 512, 1024)
    assert layout is not None
    assert layout.row_bytes == 2 * 148  # scales and minima have a byte each here
    assert not isinstance(layout.up, FloatPanel)
