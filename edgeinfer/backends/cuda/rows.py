"""Rows of a matrix, looked up by numbers in the step: embeddings and learned positions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from edgeinfer.backends.cuda.driver import GpuLaunch
from edgeinfer.backends.cuda.layout import BLOCK, FloatForm, IntegerForm, padded
from edgeinfer.backends.cuda.op import Call
from edgeinfer.graph.operands import Weight

if TYPE_CHECKING:
    from edgeinfer.backends.cuda.lowering import CudaLowering


def look_up(lowering: CudaLowering, weight: Weight, name: str, scale: float, rows_at: int, *, adds: bool) -> list[Call]:
    """Copy rows of a matrix to a buffer, or add them to it; their numbers are in the step from `rows_at` on."""
    lowering.written(name)
    placed, out, stride = lowering.place(weight), lowering.memory.buffers[name], lowering.stride(name)
    form, factor = placed.form, np.float32(scale)
    at = (lowering.step.array, rows_at, out)
    arguments: tuple[object, ...]
    if isinstance(form, IntegerForm):
        kernel = lowering.kernels.get("embedding", "integer_rows", *form.constants)
        count = weight.columns // BLOCK
        arguments = (*placed.integer_arrays(), *at, count, stride, factor, int(adds))
    else:
        assert isinstance(form, FloatForm)
        kernel = lowering.kernels.get("embedding", "float_rows", form.kind)
        count = padded(weight.columns) // 8
        arguments = (placed.region("codes"), *at, count, stride, factor, int(adds))
    return [lambda shape: GpuLaunch(kernel, (lowering.over(count), shape.tokens, 1), lowering.flat, arguments)]
