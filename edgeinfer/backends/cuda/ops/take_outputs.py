"""The rows whose logits are requested."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgeinfer.backends.cuda.ops import Call, CudaOp
from edgeinfer.graph.ops.take_outputs import TakeOutputs

if TYPE_CHECKING:
    from edgeinfer.backends.cuda.lowering import CudaLowering


def _calls(lowering: CudaLowering, op: TakeOutputs) -> list[Call]:
    buffers, step = lowering.memory.buffers, lowering.step
    strides = lowering.stride(op.source), lowering.stride(op.out)
    arguments = (buffers[op.source], buffers[op.out], step.array, step.outputs_at, op.width, *strides)
    return [lowering.pointwise(op.out, op.width, lowering.kernels.get("pointwise", "taking"), arguments)]


OP = CudaOp(_calls)
