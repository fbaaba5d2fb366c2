"""Capped values."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgeinfer.backends.onnx.lowering import Plain
from edgeinfer.backends.onnx.ops import OnnxOp
from edgeinfer.graph.ops.soft_cap import SoftCap

if TYPE_CHECKING:
    from edgeinfer.backends.onnx.lowering import OnnxLowering


def _lower(lowering: OnnxLowering, op: SoftCap) -> None:
    lowering.values[op.value] = Plain(lowering.capped(lowering.tensor(op.value), op.cap))


OP = OnnxOp(_lower)
