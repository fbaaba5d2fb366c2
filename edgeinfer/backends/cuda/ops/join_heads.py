"""Heads concatenated from two parts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgeinfer.backends.cuda.ops import Call, CudaOp
from edgeinfer.graph.ops.join_heads import JoinHeads

if TYPE_CHECKING:
    from edgeinfer.backends.cuda.lowering import CudaLowering


def _calls(lowering: CudaLowering, op: JoinHeads) -> list[Call]:
    names = op.first, op.second, op.out
    buffers, strides = (lowering.memory.buffers[name] for name in names), (lowering.stride(name) for name in names)
    step = 0 if op.shared else op.second_width
    arguments = (*buffers, op.heads, op.first_width, op.second_width, step, *strides)
    return [lowering.pointwise(op.out, op.heads * op.width, lowering.kernels.get("pointwise", "joining"), arguments)]


OP = CudaOp(_calls, frozenset({"shared"}))
