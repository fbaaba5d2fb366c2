"""Capped values."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from edgeinfer.backends.cuda.ops import Call, CudaOp
from edgeinfer.graph.ops.soft_cap import SoftCap

if TYPE_CHECKING:
    from edgeinfer.backends.cuda.lowering import CudaLowering


def _calls(lowering: CudaLowering, op: SoftCap) -> list[Call]:
    arguments = (lowering.memory.buffers[op.value], op.width, lowering.stride(op.value), np.float32(op.cap))
    return [lowering.pointwise(op.value, op.width, lowering.kernels.get("pointwise", "soft_cap"), arguments)]


OP = CudaOp(_calls)
