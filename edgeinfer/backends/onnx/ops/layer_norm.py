"""LayerNorm."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from edgeinfer.backends.onnx.lowering import Plain
from edgeinfer.backends.onnx.ops import OnnxOp
from edgeinfer.graph.ops.layer_norm import LayerNorm

if TYPE_CHECKING:
    from edgeinfer.backends.onnx.lowering import OnnxLowering


def _lower(lowering: OnnxLowering, op: LayerNorm) -> None:
    graph = lowering.graph
    ones = graph.weight(f"ones.{op.width}", np.ones(op.width, np.float32)) if op.weight is None else ""
    weight = ones if op.weight is None else lowering.vector(op.weight)
    bias = () if op.bias is None else (lowering.vector(op.bias),)
    inputs = (lowering.tensor(op.source), weight, *bias)
    lowering.values[op.out] = Plain(graph.node("LayerNormalization", inputs, axis=-1, epsilon=op.epsilon))


OP = OnnxOp(_lower)
