"""Activations as the integer products read them: int8 with a scale per 32 columns, tokens side by side in tiles.

Memory: tokens are cut into tiles of 8, then one of 4, then one of the rest (`tile_of`); a tile holds, block after block
of 32 columns, one 64-byte record per token: 32 int8 codes, then float32 scale, float32 scale * sum, int32 -8 * sum,
int32 -128 * sum, float32 scale * (sum of first 16), the same of the last 16, int32 -(sum of first 16), the same of the
last 16. Its NumPy twin is `backends.reference.round_activations`, after RMSNorm where there is a weight.
"""

from __future__ import annotations

import numpy as np
from numba import carray
from numpy.typing import NDArray

from edgeinfer.backends.cpu import simd
from edgeinfer.backends.cpu.jit import Kernel, inline
from edgeinfer.backends.cpu.kernels.crew import share_start

RECORD_BYTES = 64
SCALE_AT, SUM_AT, LESS_8_AT, LESS_128_AT, HALF_SUMS_AT, HALF_LESS_AT = 32, 36, 40, 44, 48, 56
SMALLEST = 1e-30
"""Blocks without any larger value are zeros: 127 / largest must stay finite."""

ARGUMENTS = np.dtype(
    [
        ("source", "i8"),  # float32[n, source_stride / 4]
        ("source_stride", "i8"),  # bytes
        ("rows", "i8"),  # address of the address of int32[n], which row of the source each is; 0: in order
        ("weight", "i8"),  # float32[32 * n_blocks] of an RMSNorm before rounding; 0: none
        ("n_blocks", "i8"),  # blocks of 32 columns that hold data
        ("n_padded", "i8"),  # blocks of a tile, the last ones zero
        ("out", "i8"),
        ("out_stride", "i8"),  # bytes between the copies of two workers, who then round all rows; 0: they share
        ("count", "i8"),  # address of the number of rows n
        ("width", "f4"),  # columns
        ("epsilon", "f4"),
    ]
)


@inline
def tile_of(token, count):
    """(first token of the tile that holds `token`, its size) when `count` tokens are cut into tiles."""
    start = count // 8 * 8
    if token < start:
        return token // 8 * 8, 8
    if count - start >= 4:
        if token < start + 4:
            return start, 4
        start += 4
    return start, count - start


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
    return np.float32(1.0) / np.sqrt(mean + epsilon)


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
    if args.weight != 0:
        inverse = simd.splat(inverse_size(source, args.n_blocks, args.width, args.epsilon))
        for block in range(args.n_blocks):
            low = simd.mul(simd.mul(simd.load(source + 128 * block), inverse), simd.load(args.weight + 128 * block))
            high = simd.mul(simd.load(source + 128 * block + 64), inverse)
            high = simd.mul(high, simd.load(args.weight + 128 * block + 64))
            round_block(low, high, record)
            record += step
    else:
        for block in range(args.n_blocks):
            round_block(simd.load(source + 128 * block), simd.load(source + 128 * block + 64), record)
            record += step
    for _ in range(args.n_blocks, args.n_padded):
        simd.store(record, simd.splat(np.float32(0.0)))
        record += step


def round_rows(pointer, worker, crew):
    """Round each worker's share of the rows, or all of them into its own copy, to int8 records."""
    args = carray(pointer, 1)[0]
    count = simd.load_int64(args.count)
    first, stop = share_start(crew, worker, count), share_start(crew, worker + 1, count)
    if args.out_stride != 0:
        first, stop = 0, count
    out = args.out + worker * args.out_stride
    for row in range(first, stop):
        start, size = tile_of(row, count)
        place = row
        if args.rows != 0:
            place = simd.load_int32(simd.load_int64(args.rows) + 4 * row)
        record = out + (start * args.n_padded + row - start) * RECORD_BYTES
        round_row(args, args.source + place * args.source_stride, record, size * RECORD_BYTES)


def read_records(records: NDArray[np.uint8], count: int, n_padded: int) -> NDArray[np.float32]:
    """The values that records of `count` rows stand for: float32[count, n_padded * 32]. For tests and debugging."""
    values = np.zeros((count, n_padded, 32), np.float32)
    for token in range(count):
        start, size = tile_of.py_func(token, count)
        tile = records[start * n_padded * RECORD_BYTES :][: size * n_padded * RECORD_BYTES]
        own = tile.reshape(n_padded, size, RECORD_BYTES)[:, token - start]
        scales = np.ascontiguousarray(own[:, SCALE_AT : SCALE_AT + 4]).view(np.float32)
        values[token] = own[:, :32].view(np.int8) * scales
    return values.reshape(count, -1)


ROUND_ROWS = Kernel("round_rows", round_rows, ARGUMENTS)
