"""RMSNorm, which absorbs a deferred sum and stores the sum in its buffer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from edgeinfer.backends.onnx.graph import CONTRIB
from edgeinfer.backends.onnx.lowering import Plain, Sum
from edgeinfer.backends.onnx.ops import OnnxOp
from edgeinfer.graph.ops.rms_norm import RMSNorm

if TYPE_CHECKING:
    from edgeinfer.backends.onnx.lowering import OnnxLowering


def _lower(lowering: OnnxLowering, op: RMSNorm) -> None:
    graph, source = lowering.graph, lowering.value(op.source)
    ones = graph.weight(f"ones.{op.width}", np.ones(op.width, np.float32)) if op.weight is None else ""
    weight = ones if op.weight is None else lowering.vector(op.weight)
    if isinstance(source, Sum) and op.groups == 1:
        inputs = (source.left, source.right, weight)
        kind = "SkipSimplifiedLayerNormalization"
        outs = graph.nodes(kind, inputs, ("?", "", "", "?"), domain=CONTRIB, epsilon=op.epsilon)
        lowering.values[op.source] = Plain(outs[3])
        lowering.values[op.out] = Plain(outs[0])
        return
    value = lowering.tensor(op.source)
    value = graph.reshape(value, -1, op.groups, op.width) if op.groups > 1 else value
    kind = "SimplifiedLayerNormalization"
    normed = graph.node(kind, (value, weight), axis=-1, epsilon=op.epsilon, stash_type=1)
    normed = graph.reshape(normed, -1, op.groups * op.width) if op.groups > 1 else normed
    lowering.values[op.out] = Plain(normed)


OP = OnnxOp(_lower, frozenset({"groups"}))
