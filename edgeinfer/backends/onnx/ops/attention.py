"""Attention, with the keys and values that were stored before it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgeinfer.backends.onnx.lowering import Plain
from edgeinfer.backends.onnx.ops import OnnxOp
from edgeinfer.errors import UnsupportedModel
from edgeinfer.graph.ops.attention import Attention

if TYPE_CHECKING:
    from edgeinfer.backends.onnx.lowering import OnnxLowering


def _lower(lowering: OnnxLowering, op: Attention) -> None:
    if op.layer not in lowering.stored:
        raise UnsupportedModel(f"attention of layer {op.layer} stands where no keys are stored for it")
    lowering.values[op.out] = Plain(lowering.around.attended(lowering, op, *lowering.stored[op.layer]))
    lowering.attended.add(op.layer)


OP = OnnxOp(_lower, frozenset({"window", "soft_cap"}))
