"""Embeddings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgeinfer.backends.cuda.lowering import look_up
from edgeinfer.backends.cuda.ops import Call, CudaOp
from edgeinfer.graph.ops.embed import Embed

if TYPE_CHECKING:
    from edgeinfer.backends.cuda.lowering import CudaLowering


def _calls(lowering: CudaLowering, op: Embed) -> list[Call]:
    return look_up(lowering, op.weight, op.out, op.scale, lowering.step.tokens_at, adds=False)


OP = CudaOp(_calls, frozenset({"scale"}))
