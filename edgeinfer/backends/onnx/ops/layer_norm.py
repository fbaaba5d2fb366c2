"""LayerNorm."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgeinfer.backends.onnx.op import OnnxOp
from edgeinfer.backends.onnx.values import Plain
from edgeinfer.graph.ops.layer_norm import LayerNorm

if TYPE_CHECKING:
    from edgeinfer.backends.onnx.lowering import Lowering


def _lower(lowering: Lowering, op: LayerNorm) -> None:
    inputs = (lowering.tensor(op.source), lowering.vector(op.weight), lowering.vector(op.bias))
    lowering.values[op.out] = Plain(lowering.graph.node("LayerNormalization", inputs, axis=-1, epsilon=op.epsilon))


OP = OnnxOp(_lower)
