"""Products; where the matrix has extra columns for group sums, the sums are appended to the source."""

from __future__ import annotations

from typing import TYPE_CHECKING

from openvino import Node
from openvino import opset13 as op

from edgeinfer.backends import weights
from edgeinfer.backends.openvino.constants import store
from edgeinfer.backends.openvino.nodes import indices, matrix, numbers
from edgeinfer.backends.openvino.ops import OpenVinoOp
from edgeinfer.graph.ops.matmul import MatMul
from edgeinfer.models.quants import format_of

if TYPE_CHECKING:
    from edgeinfer.backends.openvino.graph import OpenVinoLowering


def _lower(lowering: OpenVinoLowering, each: MatMul) -> None:
    info = lowering.file.tensors[each.weight.tensor]
    form = format_of(info.ggml_type)
    if each.weight not in lowering.matrices:
        raw = weights.raw_rows(lowering.file, each.weight)
        lowering.matrices[each.weight] = matrix(store(raw, form, each.weight.columns))
    columns = lowering.matrices[each.weight].get_output_shape(0)[1]
    product = op.matmul(_with_sums(lowering, each, columns), lowering.matrices[each.weight], False, True)
    if each.bias is not None:
        bias = weights.vector(lowering.file, each.bias)
        product = op.add(product, op.constant(bias.reshape(1, 1, -1)))
    if each.accumulate and each.out in lowering.values:
        product = op.add(lowering.rows(each.out), product)
    lowering.set(each.out, product)


def _with_sums(lowering: OpenVinoLowering, each: MatMul, columns: int) -> Node:
    """What a product reads: its source, followed by the group sums if the matrix has columns for them."""
    source, own = lowering.rows(each.source), each.weight.columns
    if columns == own:
        return source
    form = format_of(lowering.file.tensors[each.weight.tensor].ggml_type)
    group = form.group  # type: ignore[union-attr]
    value = lowering.value(each.source)
    if (columns, group) not in value.sums:
        n_sums = own // group
        grouped = op.reshape(source, indices(0, 0, n_sums, group), True)
        sums = op.reduce_sum(grouped, indices(3), False)
        missing = columns - own - n_sums
        if missing:
            sums = op.pad(sums, indices(0, 0, 0), indices(0, 0, missing), "constant", numbers(0.0))
        value.sums[columns, group] = op.concat([source, sums], 2)
    return value.sums[columns, group]


OP = OpenVinoOp(_lower, frozenset({"bias", "accumulate"}))
