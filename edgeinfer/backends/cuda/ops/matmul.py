"""Products: integer with rounded activations, float, and by cuBLAS for many rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgeinfer.backends.cuda.driver import GpuLaunch, Series, Startable
from edgeinfer.backends.cuda.layout import BLOCK, FloatForm, IntegerForm, over, padded
from edgeinfer.backends.cuda.ops import Call, CudaOp
from edgeinfer.backends.cuda.step import LaunchShape
from edgeinfer.graph.ops.matmul import MatMul

if TYPE_CHECKING:
    from edgeinfer.backends.cuda.lowering import CudaLowering


ROW_WARPS = 4
"""Rows per block of a product, one warp each."""
MOST_TILE = 8
"""Tokens whose sums one warp of a product accumulates."""


def tile_for(n_rows: int) -> int:
    """Tokens in a product's tile."""
    return next(tile for tile in (1, 2, 4, MOST_TILE) if tile >= min(n_rows, MOST_TILE))


def _calls(lowering: CudaLowering, op: MatMul) -> list[Call]:
    placed, rows = lowering.place(op.weight), lowering.rows(op.source)
    out, stride = lowering.memory.buffers[op.out], lowering.stride(op.out)
    bias = None if op.bias is None else lowering.place(op.bias).region("values")
    ends = (out if bias is None else bias, out, op.weight.n_rows)
    mode = (bias is not None) + 2 * op.accumulate
    form = placed.form
    calls: list[Call] = []
    fixed: tuple[object, ...]
    if isinstance(form, IntegerForm):
        calls = lowering.round(op.source)
        rounded = lowering.memory.rounded[op.source]
        name, fixed = ("products", "integer_product"), form.constants
        sources: tuple[object, ...] = (*placed.integer_arrays(), rounded.codes, rounded.scales, rounded.sums)
        count = op.weight.columns // BLOCK
    else:
        assert isinstance(form, FloatForm)
        name, fixed = ("floats", "float_product"), (form.kind,)
        sources = (placed.region("codes"), lowering.memory.buffers[op.source])
        count = padded(op.weight.columns) // 8
    blocks = over(op.weight.n_rows, ROW_WARPS)

    def call(shape: LaunchShape) -> Startable:
        n_rows = rows(shape)
        if lowering.large is not None and lowering.is_large(n_rows):
            source = lowering.memory.buffers[op.source], lowering.stride(op.source), n_rows
            return Series(lowering.large.launches(placed, source, (out, stride, n_rows), bias, mode))
        tile = tile_for(n_rows)
        kernel = lowering.kernels.get(*name, *fixed, tile)
        arguments = (*sources, *ends, count, n_rows, stride, mode)
        return GpuLaunch(kernel, (blocks, -(-n_rows // tile), 1), (lowering.sizes.lanes, ROW_WARPS), arguments)

    lowering.written(op.out)
    return [*calls, call]


OP = CudaOp(_calls, frozenset({"bias", "accumulate"}))
