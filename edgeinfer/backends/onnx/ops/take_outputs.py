"""The rows whose logits are requested."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgeinfer.backends.onnx.lowering import Plain
from edgeinfer.backends.onnx.ops import OnnxOp
from edgeinfer.graph.ops.take_outputs import TakeOutputs

if TYPE_CHECKING:
    from edgeinfer.backends.onnx.lowering import OnnxLowering


def _lower(lowering: OnnxLowering, op: TakeOutputs) -> None:
    lowering.values[op.out] = Plain(lowering.around.taken(lowering, lowering.tensor(op.source)))


OP = OnnxOp(_lower)
