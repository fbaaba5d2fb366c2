"""Capped values."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgeinfer.backends.onnx.op import OnnxOp
from edgeinfer.backends.onnx.values import Plain
from edgeinfer.graph.ops.soft_cap import SoftCap

if TYPE_CHECKING:
    from edgeinfer.backends.onnx.lowering import Lowering


def _lower(lowering: Lowering, op: SoftCap) -> None:
    lowering.values[op.value] = Plain(lowering.capped(lowering.tensor(op.value), op.cap))


OP = OnnxOp(_lower)
