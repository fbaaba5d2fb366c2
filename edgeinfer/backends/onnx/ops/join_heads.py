"""Heads concatenated from two parts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgeinfer.backends.onnx.lowering import Plain
from edgeinfer.backends.onnx.ops import OnnxOp
from edgeinfer.graph.ops.join_heads import JoinHeads

if TYPE_CHECKING:
    from edgeinfer.backends.onnx.lowering import OnnxLowering


def _lower(lowering: OnnxLowering, op: JoinHeads) -> None:
    graph = lowering.graph
    first = graph.reshape(lowering.tensor(op.first), -1, op.heads, op.first_width)
    second = graph.reshape(lowering.tensor(op.second), -1, 1 if op.shared else op.heads, op.second_width)
    if op.shared:
        second = graph.node("Expand", (second, graph.numbers(1, op.heads, 1)))
    joined = graph.node("Concat", (first, second), axis=2)
    lowering.values[op.out] = Plain(graph.reshape(joined, -1, op.heads * op.width))


OP = OnnxOp(_lower, frozenset({"shared"}))
