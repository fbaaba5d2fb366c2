"""Sums, which are deferred: a norm may absorb them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgeinfer.backends.onnx.op import OnnxOp
from edgeinfer.backends.onnx.values import Sum
from edgeinfer.graph.ops.add import Add

if TYPE_CHECKING:
    from edgeinfer.backends.onnx.lowering import OnnxLowering


def _lower(lowering: OnnxLowering, op: Add) -> None:
    lowering.values[op.out] = Sum(lowering.tensor(op.out), lowering.tensor(op.source))


OP = OnnxOp(_lower)
