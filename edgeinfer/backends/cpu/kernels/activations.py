"""Activations as the integer products read them: int8 with a scale per 32 columns, tokens side by side in tiles.

Memory: tokens are cut into tiles of 8, 4, 2 and 1 (`tile_of`); a tile holds, block after block of 32 columns, one
64-byte record per token: 32 int8 codes, then float32 scale, float32 scale * sum, int32 -8 * sum, int32 -128 * sum,
float32 scale * (sum of first 16), the same of the last 16, int32 -(sum of first 16), the same of the last 16.
Its NumPy twin is `backends.reference.round_activations`.
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
        ("n_blocks", "i8"),  # blocks of 32 columns that hold data
        ("n_padded", "i8"),  # blocks of a tile, the last ones zero
        ("out", "i8"),
        ("count", "i8"),  # address of the number of rows n
    ]
)


@inline
def tile_of(token, count):
    """(first token of the tile that holds `token`, its size) when `count` tokens are cut into tiles."""
    whole = count // 8 * 8
    if token < whole:
        return token // 8 * 8, 8
    start = whole
    if count - start >= 4:
        if token < start + 4:
            return start, 4
        start += 4
    if count - start >= 2:
        if token < start + 2:
            return start, 2
        start += 2
    return start, 1


@inline
def round_block(source, record):
    """Round 32 floats and write their record."""
    low, high = simd.load(source), simd.load(source + 64)
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


def quantise(pointer, worker, crew):
    """Round each worker's share of the rows to int8 records."""
    args = carray(pointer, 1)[0]
    count = simd.load_int64(args.count)
    zero = simd.splat(np.float32(0.0))
    for token in range(share_start(crew, worker, count), share_start(crew, worker + 1, count)):
        start, size = tile_of(token, count)
        record = args.out + (start * args.n_padded + token - start) * RECORD_BYTES
        source = args.source + token * args.source_stride
        for _block in range(args.n_blocks):
            round_block(source, record)
            source += 128
            record += size * RECORD_BYTES
        for _block in range(args.n_blocks, args.n_padded):
            simd.store(record, zero)
            record += size * RECORD_BYTES


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


QUANTISE = Kernel("quantise", quantise, ARGUMENTS)
