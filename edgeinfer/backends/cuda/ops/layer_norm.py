"""LayerNorm."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from edgeinfer.backends.cuda.driver import Launch
from edgeinfer.backends.cuda.op import Call, CudaOp
from edgeinfer.graph.op import Op
from edgeinfer.graph.ops.layer_norm import LayerNorm

if TYPE_CHECKING:
    from edgeinfer.backends.cuda.lowering import Lowering


def _calls(lowering: Lowering, op: LayerNorm) -> list[Call]:
    lowering.written(op.out)
    kernel = lowering.kernels.get("pointwise", "layer_norm")
    buffers, rows = lowering.memory.buffers, lowering.rows(op.source)
    vectors = (lowering.place(part).region("values") for part in op.vectors)
    ends = op.width, lowering.stride(op.source), lowering.stride(op.out), np.float32(op.epsilon)
    arguments = (buffers[op.source], *vectors, buffers[op.out], *ends)
    block = (lowering.sizes.lanes, lowering.sizes.norm_warps)
    return [lambda shape: Launch(kernel, (1, rows(shape), 1), block, arguments)]


def _why_not(op: Op) -> str | None:
    assert isinstance(op, LayerNorm)
    return "it has those with a weight and a bias" if op.weight is None or op.bias is None else None


OP = CudaOp(_calls, why_not=_why_not)
