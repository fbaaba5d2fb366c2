"""Sums of buffers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgeinfer.backends.cuda.ops import Call, CudaOp
from edgeinfer.graph.ops.add import Add

if TYPE_CHECKING:
    from edgeinfer.backends.cuda.lowering import CudaLowering


def _calls(lowering: CudaLowering, op: Add) -> list[Call]:
    buffers, strides = lowering.memory.buffers, (lowering.stride(op.source), lowering.stride(op.out))
    arguments = (buffers[op.source], buffers[op.out], op.width, *strides)
    return [lowering.pointwise(op.out, op.width, lowering.kernels.get("pointwise", "addition"), arguments)]


OP = CudaOp(_calls)
