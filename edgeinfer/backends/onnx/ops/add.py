"""Sums, which are deferred: a norm may absorb them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgeinfer.backends.onnx.lowering import Sum
from edgeinfer.backends.onnx.ops import OnnxOp
from edgeinfer.graph.ops.add import Add

if TYPE_CHECKING:
    from edgeinfer.backends.onnx.lowering import OnnxLowering


def _lower(lowering: OnnxLowering, op: Add) -> None:
    lowering.values[op.out] = Sum(lowering.tensor(op.out), lowering.tensor(op.source))


OP = OnnxOp(_lower)
