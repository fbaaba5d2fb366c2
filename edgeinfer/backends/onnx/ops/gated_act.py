"""Activated gates times the up projection."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgeinfer.backends.onnx.graph import activated
from edgeinfer.backends.onnx.lowering import Plain
from edgeinfer.backends.onnx.ops import OnnxOp
from edgeinfer.graph.ops.gated_act import GatedAct

if TYPE_CHECKING:
    from edgeinfer.backends.onnx.lowering import OnnxLowering


def _lower(lowering: OnnxLowering, op: GatedAct) -> None:
    gate, up = lowering.tensor(op.gate), lowering.tensor(op.up)
    lowering.values[op.out] = Plain(lowering.graph.node("Mul", (activated(lowering.graph, op.activation, gate), up)))


OP = OnnxOp(_lower)
