"""Activated gates times the up projection."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgeinfer.backends.cuda.ops import Call, CudaOp
from edgeinfer.graph.ops.gated_act import GatedAct

if TYPE_CHECKING:
    from edgeinfer.backends.cuda.lowering import CudaLowering


def _calls(lowering: CudaLowering, op: GatedAct) -> list[Call]:
    strides = {lowering.stride(name) for name in (op.gate, op.up, op.out)}
    assert len(strides) == 1
    buffers, kernel = lowering.memory.buffers, lowering.kernels.get("pointwise", "gated", op.activation)
    arguments = (buffers[op.gate], buffers[op.up], buffers[op.out], op.width, strides.pop())
    return [lowering.pointwise(op.out, op.width, kernel, arguments)]


OP = CudaOp(_calls)
