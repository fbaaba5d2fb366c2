"""Attention over pages, split into chunks of positions for passes with few tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from edgeinfer.backends.cuda.driver import GpuLaunch
from edgeinfer.backends.cuda.layout import SPLIT_TOKENS, over
from edgeinfer.backends.cuda.ops import Call, CudaOp
from edgeinfer.backends.cuda.step import LaunchShape
from edgeinfer.graph.ops.attention import Attention

if TYPE_CHECKING:
    from edgeinfer.backends.cuda.lowering import CudaLowering


MOST_WARPS = 8
"""Query heads per block of attention."""


def _calls(lowering: CudaLowering, op: Attention) -> list[Call]:
    lowering.written(op.out)
    memory, cache, n_chunks = lowering.memory, lowering.memory.caches[op.layer], lowering.layout.n_chunks
    group, value_widths = op.heads // op.kv_heads, (op.value_width, cache.value_form.padded_width)
    warps = min(group, MOST_WARPS)
    has_window, window = op.window is not None, op.window or 0
    widths = (op.key_width, cache.key_form.padded_width, *value_widths)
    fixed = (cache.key_form.kind, *widths, warps, has_window, op.soft_cap is not None)
    stepped = (lowering.step.array, memory.window_places if cache.is_limited else memory.places)
    arguments = (
        *(memory.buffers[op.query], cache.keys, cache.key_scales, cache.values, cache.value_scales),
        *(*stepped, memory.buffers[op.out], memory.partials, op.kv_heads, group),
        *(lowering.stride(op.query), lowering.stride(op.out), lowering.step.table_width, n_chunks),
        *(np.float32(op.scale), window, np.float32(op.soft_cap or 0)),
    )
    blocks = op.kv_heads * over(group, warps)
    joined = (memory.partials, *stepped, memory.buffers[op.out], n_chunks, lowering.stride(op.out), window)

    def attend(shape: LaunchShape) -> GpuLaunch:
        is_split = shape.tokens <= SPLIT_TOKENS
        kernel = lowering.kernels.get("attention", "attention", *fixed, is_split)
        grid = (shape.tokens, blocks, shape.chunks if is_split else 1)
        return GpuLaunch(kernel, grid, (lowering.sizes.lanes, warps), arguments)

    def join(shape: LaunchShape) -> GpuLaunch:
        kernel = lowering.kernels.get("attention", "joining", *value_widths, has_window)
        rows = shape.tokens if shape.tokens <= SPLIT_TOKENS else 0
        return GpuLaunch(kernel, (rows, op.heads, 1), (lowering.sizes.lanes, 1), joined)

    return [attend, join]


OP = CudaOp(_calls, frozenset({"window", "soft_cap"}))
