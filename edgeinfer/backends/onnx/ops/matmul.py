"""Products of one source, merged if they share one form; additions to a buffer are deferred."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from edgeinfer.backends import weights
from edgeinfer.backends.onnx import matrices
from edgeinfer.backends.onnx.lowering import Plain, Sum, TensorPart
from edgeinfer.backends.onnx.matrices import BlockForm, ProductGroup
from edgeinfer.backends.onnx.ops import OnnxOp
from edgeinfer.models.quants import BlockFormat

if TYPE_CHECKING:
    from edgeinfer.backends.onnx.lowering import OnnxLowering

INT8_ACTIVATIONS = 4
"""MatMulNBits's accuracy level that rounds inputs to int8 per block."""


def _lower(lowering: OnnxLowering, product: ProductGroup) -> None:
    """Products of one source; additions to a buffer are deferred."""
    first = product.ops[0]
    out = _multiplied(lowering, product, lowering.tensor(first.source))
    if first.accumulate:
        held = first.out in lowering.values
        lowering.values[first.out] = Sum(lowering.tensor(first.out), out) if held else Plain(out)
    elif len(product.ops) == 1:
        lowering.values[first.out] = Plain(out)
    else:
        for index, op in enumerate(product.ops):
            lowering.values[op.out] = TensorPart(out, index, product.heights)


def _multiplied(lowering: OnnxLowering, product: ProductGroup, source: str) -> str:
    graph, parts = lowering.graph, product.weights
    name = " ".join(f"{part.tensor}[{part.start}:{part.stop}]" for part in parts)
    bias = _bias(lowering, name, product)
    if not isinstance(product.form, BlockForm) or not isinstance(product.source, BlockFormat):
        values = graph.weight(name, matrices.floats(lowering.file, parts))
        return graph.node("Gemm", (source, values, *([bias] if bias else [])), transB=1)
    packed = matrices.blocks(lowering.file, parts, product.source, product.form)
    lowering.packed_bytes += packed.scales.nbytes
    inputs = [source, graph.weight(f"{name}.codes", packed.codes), graph.weight(f"{name}.scales", packed.scales)]
    out = graph.contrib(
        "MatMulNBits",
        [*inputs, "", "", bias] if bias else inputs,
        K=parts[0].columns,
        N=sum(product.heights),
        bits=packed.form.bits,
        block_size=packed.form.block,
        accuracy_level=INT8_ACTIVATIONS,
    )
    if packed.minimums is None:
        return out
    minimums = graph.weight(f"{name}.minimums", packed.minimums)
    return graph.node("Gemm", (_block_sums(lowering, source, parts[0].columns, packed.form.block), minimums, out))


def _bias(lowering: OnnxLowering, name: str, product: ProductGroup) -> str:
    """The initialiser of the biases, "" if there are none."""
    if not product.biases:
        return ""
    values = np.concatenate([weights.vector(lowering.file, bias) for bias in product.biases])
    return lowering.graph.weight(f"{name}.bias", values)


def _block_sums(lowering: OnnxLowering, source: str, columns: int, block: int) -> str:
    """Block sums of a product's input, [rows, columns / block]; computed once for all products that read it."""
    if (source, block) not in lowering.sums:
        cut = lowering.graph.reshape(source, -1, columns // block, block)
        lowering.sums[source, block] = lowering.graph.node("ReduceSum", (cut, lowering.graph.numbers(2)), keepdims=0)
    return lowering.sums[source, block]


OP = OnnxOp(_lower, frozenset({"bias", "accumulate"}))
