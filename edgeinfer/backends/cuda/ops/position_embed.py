"""Learned position embeddings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgeinfer.backends.cuda.lowering import look_up
from edgeinfer.backends.cuda.ops import Call, CudaOp
from edgeinfer.graph.ops.position_embed import PositionEmbed

if TYPE_CHECKING:
    from edgeinfer.backends.cuda.lowering import CudaLowering


def _calls(lowering: CudaLowering, op: PositionEmbed) -> list[Call]:
    return look_up(lowering, op.weight, op.out, 1.0, lowering.step.positions_at, adds=True)


OP = CudaOp(_calls)
