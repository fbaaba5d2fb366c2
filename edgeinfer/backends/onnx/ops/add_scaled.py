"""What a LoRA adapter adds, at the scale it was loaded with; the sum is deferred: a norm may absorb it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgeinfer.backends.onnx.lowering import Sum
from edgeinfer.backends.onnx.ops import OnnxOp
from edgeinfer.graph.ops.add_scaled import AddScaled

if TYPE_CHECKING:
    from edgeinfer.backends.onnx.lowering import OnnxLowering


def _lower(lowering: OnnxLowering, op: AddScaled) -> None:
    graph = lowering.graph
    scaled = graph.node("Mul", (lowering.tensor(op.source), graph.scalar(op.scale * op.factor)))
    lowering.values[op.out] = Sum(lowering.tensor(op.out), scaled)


OP = OnnxOp(_lower)
