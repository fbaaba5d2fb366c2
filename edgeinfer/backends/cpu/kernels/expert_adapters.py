"""LoRA adapters of experts: the low rows of a pass's pairs, between the products with A and with B.

Memory: a low row of each pair, float32[pairs, stride / 4], in the numbering of `kernels.experts`, zero-padded; its int8
records lie in the tiles of its expert's tokens (`rounded.tile_of`). NumPy twin: `ops.experts`.
"""

from __future__ import annotations

import numpy as np

from edgeinfer.backends.cpu.kernels.experts import counts_at, starts_at, tokens_at
from edgeinfer.backends.cpu.kernels.matmul.activations import round_row, tile_of
from edgeinfer.backends.cpu.kernels.work_split import share_start
from edgeinfer.backends.cpu.layout.chosen_records import LOW_ROWS
from edgeinfer.backends.cpu.layout.records import ROUND_ROWS
from edgeinfer.backends.cpu.layout.rounded import RECORD_BYTES
from edgeinfer.jit import simd
from edgeinfer.jit.compiler import inline

low_rows_at, rounding_at = simd.record_at(LOW_ROWS), simd.record_at(ROUND_ROWS)


@inline
def scale_row(args, row, token):
    """Multiply a row by the scale of its token; zeros if that is 0, whatever the row holds."""
    scale = simd.load_float(args.scales + 4 * token)
    factor, zero = simd.splat(scale * args.factor), simd.splat(np.float32(0.0))
    for at in range(0, args.stride, 64):
        if scale == np.float32(0.0):
            simd.store(row + at, zero)
        else:
            simd.store(row + at, simd.mul(simd.load(row + at), factor))


def ready_low_rows(pointer, worker, work_split):
    """Low rows times the scales of their tokens, and rounded, if B is of integers: of each expert a worker's share."""
    args = low_rows_at(pointer)
    lists = args.lists + worker * args.lists_stride
    for busy in range(simd.load_int64(lists)):
        expert = simd.load_int64(lists + 8 + 8 * busy)
        start = simd.load_int64(starts_at(lists, args.n_experts) + 8 * expert)
        n_tokens = simd.load_int64(counts_at(lists, args.n_experts) + 8 * expert)
        for place in range(share_start(work_split, worker, n_tokens), share_start(work_split, worker + 1, n_tokens)):
            row = args.rows + (start + place) * args.stride
            if args.scales != 0:
                scale_row(args, row, simd.load_int32(tokens_at(lists, args.n_experts) + 4 * (start + place)))
            if args.rounding != 0:
                rounding = rounding_at(args.rounding)
                tile, width = tile_of(place, n_tokens, 0)
                record = args.out + ((start + tile) * rounding.n_padded + place - tile) * RECORD_BYTES
                round_row(rounding, row, record, width * RECORD_BYTES)
