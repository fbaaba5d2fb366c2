"""Scaled values."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from edgeinfer.backends.cuda.ops import Call, CudaOp
from edgeinfer.graph.ops.scale import Scale

if TYPE_CHECKING:
    from edgeinfer.backends.cuda.lowering import CudaLowering


def _calls(lowering: CudaLowering, op: Scale) -> list[Call]:
    lowering.written(op.value)
    arguments = (lowering.memory.buffers[op.value], op.width, lowering.stride(op.value), np.float32(op.factor))
    return [lowering.pointwise(op.value, op.width, lowering.kernels.get("pointwise", "scaling"), arguments)]


OP = CudaOp(_calls)
