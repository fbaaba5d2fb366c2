"""Scaled values."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgeinfer.backends.onnx.lowering import Plain
from edgeinfer.backends.onnx.ops import OnnxOp
from edgeinfer.graph.ops.scale import Scale

if TYPE_CHECKING:
    from edgeinfer.backends.onnx.lowering import OnnxLowering


def _lower(lowering: OnnxLowering, op: Scale) -> None:
    graph = lowering.graph
    scaled = graph.node("Mul", (lowering.tensor(op.value), graph.scalar(op.factor)))
    lowering.values[op.value] = Plain(scaled)


OP = OnnxOp(_lower)
