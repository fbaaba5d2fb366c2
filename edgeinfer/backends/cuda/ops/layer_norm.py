"""LayerNorm."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from edgeinfer.backends.cuda.driver import GpuLaunch
from edgeinfer.backends.cuda.ops import Call, CudaOp
from edgeinfer.graph.ops.layer_norm import LayerNorm

if TYPE_CHECKING:
    from edgeinfer.backends.cuda.lowering import CudaLowering


def _calls(lowering: CudaLowering, op: LayerNorm) -> list[Call]:
    lowering.written(op.out)
    kernel = lowering.kernels.get("pointwise", "layer_norm", op.weight is not None, op.bias is not None)
    buffers, rows = lowering.memory.buffers, lowering.rows(op.source)
    parts = (op.weight, op.bias)
    vectors = (buffers[op.source] if part is None else lowering.place(part).region("values") for part in parts)
    ends = op.width, lowering.stride(op.source), lowering.stride(op.out), np.float32(op.epsilon)
    arguments = (buffers[op.source], *vectors, buffers[op.out], *ends)
    block = (lowering.sizes.lanes, lowering.sizes.norm_warps)
    return [lambda shape: GpuLaunch(kernel, (1, rows(shape), 1), block, arguments)]


OP = CudaOp(_calls)
