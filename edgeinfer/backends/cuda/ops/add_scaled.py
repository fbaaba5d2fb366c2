"""What a LoRA adapter adds, at the scale it was loaded with: its rows are scaled in place, then added."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from edgeinfer.backends.cuda.ops import Call, CudaOp
from edgeinfer.graph.ops.add_scaled import AddScaled

if TYPE_CHECKING:
    from edgeinfer.backends.cuda.lowering import CudaLowering


def _calls(lowering: CudaLowering, op: AddScaled) -> list[Call]:
    buffers, kernels = lowering.memory.buffers, lowering.kernels
    strides, factor = (lowering.stride(op.source), lowering.stride(op.out)), np.float32(op.scale * op.factor)
    scaling = (buffers[op.source], op.width, strides[0], factor)
    addition = (buffers[op.source], buffers[op.out], op.width, *strides)
    for name in (op.source, op.out):
        lowering.written(name)
    return [
        lowering.pointwise(op.source, op.width, kernels.get("pointwise", "scaling"), scaling),
        lowering.pointwise(op.out, op.width, kernels.get("pointwise", "addition"), addition),
    ]


OP = CudaOp(_calls)
