"""Matrices for ONNX Runtime: the initialisers of every quant format stand for its values, and products use them so."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import gguf
import numpy as np
import pytest
from numpy.typing import NDArray

from edgeinfer.backends import weights
from edgeinfer.backends.onnx import matrices
from edgeinfer.backends.onnx.matrices import BlockForm, Blocks, ProductGroup, joined
from edgeinfer.graph.graph import Fragment, ModelSpec, Stage
from edgeinfer.graph.operands import Buffer, RopePermutation, Weight
from edgeinfer.graph.ops.matmul import MatMul
from edgeinfer.models.gguf import GGUFFile
from edgeinfer.models.quants import FORMATS, BlockFormat
from edgeinfer.steps import no_progress
from tests.unit.backends.random_blocks import OneMatrix, ordinary_rows

KEYS = FORMATS.keys()
ROWS, COLUMNS = 24, 512
TENSOR = "a.weight"


def write_matrix(path: Path, key: str) -> GGUFFile:
    """A file with one matrix of ordinary numbers, or of random codes where gguf cannot make it."""
    form = FORMATS.get(key)
    rng = np.random.default_rng(3)
    if form.ggml_type not in set(gguf.GGMLQuantizationType):
        assert isinstance(form, BlockFormat)
        return cast("GGUFFile", OneMatrix(TENSOR, form, ordinary_rows(form, ROWS, COLUMNS, rng), COLUMNS))
    kind = gguf.GGMLQuantizationType(form.ggml_type)
    values = rng.standard_normal((ROWS, COLUMNS), dtype=np.float32) + np.float32(0.2)
    try:
        raw = gguf.quants.quantize(values, kind)
    except NotImplementedError:
        assert isinstance(form, BlockFormat)
        raw = ordinary_rows(form, ROWS, COLUMNS, rng)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tensor(TENSOR, raw.view(np.uint8).reshape(ROWS, -1), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return GGUFFile.open(path)


def values_of(packed: Blocks) -> NDArray[np.float64]:
    """What the arrays stand for by the operator's definition, in float64: [N, K]."""
    codes = packed.codes.astype(np.float64)
    if packed.form.bits == 4:
        low, high = packed.codes & 15, packed.codes >> 4
        codes = np.stack([low, high], axis=-1).reshape(*low.shape[:2], -1).astype(np.float64)
    values = packed.scales[..., None].astype(np.float64) * (codes - (1 << packed.form.bits - 1))
    if packed.minimums is not None:
        values += packed.minimums.T[..., None]
    return values.reshape(len(values), -1)


@pytest.mark.parametrize("order", [None, RopePermutation(8, 4)])
@pytest.mark.parametrize("key", KEYS)
def test_initialisers_stand_for_the_values_of_the_file(tmp_path: Path, key: str, order: RopePermutation | None) -> None:
    form = FORMATS.get(key)
    parts = [Weight(TENSOR, 8, 24, COLUMNS, order), Weight(TENSOR, 0, 8, COLUMNS)]
    with write_matrix(tmp_path / "a.gguf", key) as file:
        exact = np.concatenate([weights.matrix(file, part) for part in parts])
        made = matrices.form_of(form)
        if not isinstance(made, BlockForm):
            assert np.array_equal(matrices.floats(file, parts), exact)
            assert made.nbytes(*exact.shape) == exact.nbytes
            return
        assert isinstance(form, BlockFormat)
        packed = matrices.blocks(file, parts, form, made)
    arrays = [packed.codes, packed.scales, packed.scales, *([] if packed.minimums is None else [packed.minimums])]
    assert made.nbytes(*exact.shape) == sum(array.nbytes for array in arrays)
    if packed.minimums is None:
        assert np.array_equal(values_of(packed).astype(np.float32), exact)
    else:  # the middle goes into the minimum, which rounds once more
        assert np.abs(values_of(packed) - exact).max() < 2e-6 * np.abs(exact).max()


@pytest.mark.parametrize("key", KEYS)
def test_products_use_them_so(tmp_path: Path, key: str) -> None:
    """Rows of the unit matrix survive the rounding of inputs, so they bring out the values of the file."""
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnx.helper")
    from edgeinfer.backends.onnx.attention import surroundings
    from edgeinfer.backends.onnx.graph import OnnxGraph
    from edgeinfer.backends.onnx.lowering import OnnxLowering, input_name
    from edgeinfer.backends.onnx.session import GraphSession

    op = MatMul("x", "y", Weight(TENSOR, 0, ROWS, COLUMNS))
    buffers = (Buffer("x", COLUMNS), Buffer("y", ROWS))
    spec = ModelSpec("llama", "", 1, 1, 1, 1, 1, 1, 1, 1, buffers, (Stage("a", (op,)),), ())
    graph = OnnxGraph()
    with write_matrix(tmp_path / "a.gguf", key) as file:
        exact = weights.matrix(file, op.weight)
        fragment = Fragment(spec, ("x",), ("y",))
        out = OnnxLowering(graph, file, surroundings(graph, grouped=True), 1).lower(fragment, no_progress)["y"]
    graph.node("Identity", (out,), out="out")
    graph.output("out", 1, ("n", ROWS))
    session = GraphSession.of_graph(graph, ("CPUExecutionProvider",), 1)
    units, products = np.eye(COLUMNS, dtype=np.float32), np.zeros((COLUMNS, ROWS), np.float32)
    session.bind_input(input_name("x"), units, units.shape)
    session.bind_output("out", products, products.shape)
    session.run()
    assert np.abs(products.T - exact).max() < 4e-6 * np.abs(exact).max()


def test_neighbouring_products_of_one_source_are_joined(tmp_path: Path) -> None:
    with write_matrix(tmp_path / "a.gguf", "q8_0") as file:
        tensors = file.tensors
    weight = Weight(TENSOR, 0, ROWS, COLUMNS)
    query, key, value = (MatMul("x", out, weight) for out in ("q", "k", "v"))
    added, other = MatMul("x", "z", weight, accumulate=True), MatMul("q", "w", weight)
    found = list(joined([query, key, value, added, other], tensors))
    assert [item.ops if isinstance(item, ProductGroup) else item for item in found] == [
        (query, key, value),
        (added,),
        (other,),
    ]
    overwriting = MatMul("x", "x", weight)
    assert len(list(joined([overwriting, query], tensors))) == 2
