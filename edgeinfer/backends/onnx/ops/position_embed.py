"""Learned position embeddings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgeinfer.backends.onnx.lowering import Plain
from edgeinfer.backends.onnx.ops import OnnxOp
from edgeinfer.graph.ops.position_embed import PositionEmbed

if TYPE_CHECKING:
    from edgeinfer.backends.onnx.lowering import OnnxLowering


def _lower(lowering: OnnxLowering, op: PositionEmbed) -> None:
    lowering.values[op.out] = Plain(lowering.around.placed(lowering, lowering.tensor(op.out), op))


OP = OnnxOp(_lower)
