"""Activations without a gate."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgeinfer.backends.cuda.ops import Call, CudaOp
from edgeinfer.graph.ops.act import Act

if TYPE_CHECKING:
    from edgeinfer.backends.cuda.lowering import CudaLowering


def _calls(lowering: CudaLowering, op: Act) -> list[Call]:
    assert lowering.stride(op.source) == lowering.stride(op.out)
    buffers, kernel = lowering.memory.buffers, lowering.kernels.get("pointwise", "plain", op.activation)
    arguments = (buffers[op.source], buffers[op.out], op.width, lowering.stride(op.out))
    return [lowering.pointwise(op.out, op.width, kernel, arguments)]


OP = CudaOp(_calls)
