"""RMSNorm of heads or whole rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from edgeinfer.backends.cuda.driver import GpuLaunch
from edgeinfer.backends.cuda.ops import Call, CudaOp
from edgeinfer.graph.ops.rms_norm import RMSNorm

if TYPE_CHECKING:
    from edgeinfer.backends.cuda.lowering import CudaLowering


def _calls(lowering: CudaLowering, op: RMSNorm) -> list[Call]:
    lowering.written(op.out)
    kernel = lowering.kernels.get("pointwise", "rms_norm", op.weight is not None)
    buffers, rows = lowering.memory.buffers, lowering.rows(op.source)
    strides = lowering.stride(op.source), lowering.stride(op.out)
    weight = buffers[op.source] if op.weight is None else lowering.place(op.weight).region("values")
    arguments = (buffers[op.source], weight, buffers[op.out], op.width, *strides, np.float32(op.epsilon))
    block = (lowering.sizes.lanes, lowering.sizes.norm_warps)
    return [lambda shape: GpuLaunch(kernel, (op.groups, rows(shape), 1), block, arguments)]


OP = CudaOp(_calls, frozenset({"groups"}))
