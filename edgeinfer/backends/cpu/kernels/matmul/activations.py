"""Rounding rows of activations to int8, after RMSNorm if there is a weight.

Memory: source float32[n, source_stride / 4]; out as `layout.rounded` lays its records out. The NumPy twin is
`backends.reference.round_activations`.
"""

from __future__ import annotations

import numpy as np

from edgeinfer.backends.cpu.kernels.matmul.rounding import BLOCKS, round_blocks
from edgeinfer.backends.cpu.kernels.work_split import share_start
from edgeinfer.backends.cpu.layout import rounded
from edgeinfer.backends.cpu.layout.records import ROUND_ROWS
from edgeinfer.backends.cpu.layout.rounded import (
    HALF_LESS_AT,
    HALF_SUMS_AT,
    LESS_8_AT,
    LESS_128_AT,
    RECORD_BYTES,
    SCALE_AT,
    SMALLEST,
    SUM_AT,
)
from edgeinfer.jit import simd
from edgeinfer.jit.compiler import inline

arguments_at = simd.record_at(ROUND_ROWS)

tile_of, tiled_tokens = inline(rounded.tile_of), inline(rounded.tiled_tokens)


@inline
def inverse_size(source, n_blocks, width, epsilon):
    """1 / sqrt(mean(source^2) + epsilon): two sums, even and odd vectors, joined at the end."""
    even = simd.splat(np.float32(0.0))
    odd = even
    for block in range(n_blocks):
        value = simd.load(source + 128 * block)
        even = simd.fma(value, value, even)
        value = simd.load(source + 128 * block + 64)
        odd = simd.fma(value, value, odd)
    mean = simd.sum_lanes(simd.add(even, odd)) / width
    return np.float32(1.0) / simd.sqrt(mean + epsilon)


@inline
def round_block(low, high, record):
    """Round 32 floats and write their record."""
    largest = simd.max_lanes(simd.maximum(simd.absolute(low), simd.absolute(high)))
    scale = largest / np.float32(127.0)
    inverse = np.float32(0.0)
    if largest >= np.float32(SMALLEST):
        inverse = np.float32(127.0) / largest
    factor = simd.splat(inverse)
    first = simd.store_rounded(record, simd.mul(low, factor))
    last = simd.store_rounded(record + 16, simd.mul(high, factor))
    simd.store_float(record + SCALE_AT, scale)
    simd.store_float(record + SUM_AT, scale * np.float32(first + last))
    simd.store_int32(record + LESS_8_AT, -8 * (first + last))
    simd.store_int32(record + LESS_128_AT, -128 * (first + last))
    simd.store_float(record + HALF_SUMS_AT, scale * np.float32(first))
    simd.store_float(record + HALF_SUMS_AT + 4, scale * np.float32(last))
    simd.store_int32(record + HALF_LESS_AT, -first)
    simd.store_int32(record + HALF_LESS_AT + 4, -last)


@inline
def round_row(args, source, record, step):
    """Records of one row, `step` bytes apart; with a weight the row is normalised first."""
    block, inverse = 0, np.float32(1.0)
    if args.weight != 0:
        inverse = inverse_size(source, args.n_blocks, args.width, args.epsilon)
        while args.n_blocks - block >= BLOCKS:
            round_blocks(1, source + 128 * block, args.weight + 128 * block, inverse, record, step)
            block, record = block + BLOCKS, record + BLOCKS * step
    while args.n_blocks - block >= BLOCKS:
        round_blocks(0, source + 128 * block, 0, inverse, record, step)
        block, record = block + BLOCKS, record + BLOCKS * step
    while block < args.n_blocks:
        low, high = simd.load(source + 128 * block), simd.load(source + 128 * block + 64)
        if args.weight != 0:
            low = simd.mul(simd.mul(low, simd.splat(inverse)), simd.load(args.weight + 128 * block))
            high = simd.mul(simd.mul(high, simd.splat(inverse)), simd.load(args.weight + 128 * block + 64))
        round_block(low, high, record)
        block, record = block + 1, record + step
    for _ in range(args.n_blocks, args.n_padded):
        simd.store(record, simd.splat(np.float32(0.0)))
        record += step


def round_rows(pointer, worker, work_split):
    """Round each worker's share of the rows, or all of them into its own copy, to int8 records."""
    args = arguments_at(pointer)
    count = simd.load_int64(args.count)
    first, stop = share_start(work_split, worker, count), share_start(work_split, worker + 1, count)
    if args.out_stride != 0:
        first, stop = 0, count
    out = args.out + worker * args.out_stride
    n_tiled = tiled_tokens(count) * args.tiled
    for row in range(first, stop):
        start, size = tile_of(row, count, n_tiled)
        place = row
        if args.rows != 0:
            place = simd.load_int32(simd.load_int64(args.rows) + 4 * row)
        record = out + (start * args.n_padded + row - start) * RECORD_BYTES
        round_row(args, args.source + place * args.source_stride, record, size * RECORD_BYTES)
