"""Activations without a gate."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgeinfer.backends.onnx.graph import activated
from edgeinfer.backends.onnx.lowering import Plain
from edgeinfer.backends.onnx.ops import OnnxOp
from edgeinfer.graph.ops.act import Act

if TYPE_CHECKING:
    from edgeinfer.backends.onnx.lowering import OnnxLowering


def _lower(lowering: OnnxLowering, op: Act) -> None:
    lowering.values[op.out] = Plain(activated(lowering.graph, op.activation, lowering.tensor(op.source)))


OP = OnnxOp(_lower)
