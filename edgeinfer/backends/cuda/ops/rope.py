"""Rotary position embedding."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgeinfer.backends.cuda.driver import GpuLaunch
from edgeinfer.backends.cuda.ops import Call, CudaOp
from edgeinfer.graph.ops.rope import Rope

if TYPE_CHECKING:
    from edgeinfer.backends.cuda.lowering import CudaLowering


def _calls(lowering: CudaLowering, op: Rope) -> list[Call]:
    lowering.written(op.value)
    kernel, half = lowering.kernels.get("pointwise", "rope"), op.table.rotary_width // 2
    arguments = (
        lowering.memory.buffers[op.value],
        *lowering.memory.rotations[op.table],
        lowering.step.array,
        lowering.step.positions_at,
        op.heads,
        op.head_width,
        half,
        lowering.stride(op.value),
    )
    blocks = lowering.over(op.heads * half)
    return [lambda shape: GpuLaunch(kernel, (blocks, shape.tokens, 1), lowering.flat, arguments)]


OP = CudaOp(_calls)
