"""Device functions that read cached keys and values: lookup of a slot, dot products with a key, single values.

Caches are laid out as `layout.KVForm`. Twins: the float16 or q8 numbers that `kernels.cache` wrote, as float32.
"""

from __future__ import annotations

import numpy as np
from numba import cuda

from edgeinfer.backends.cuda.kernels.intrinsics import half_of, load4
from edgeinfer.graph.step import PAGE

LOW_HALF, SIXTEEN = np.uint32(0xFFFF), np.uint32(16)


@cuda.jit(device=True)
def low_half(word):
    """The first of two floats in a word."""
    return half_of(np.uint16(word & LOW_HALF))


@cuda.jit(device=True)
def high_half(word):
    """The second of two floats in a word."""
    return half_of(np.uint16(word >> SIXTEEN))


@cuda.jit(device=True)
def byte_of(word, byte):
    """A signed byte of a word as float."""
    code = np.int32((word >> np.uint32(8 * byte)) & np.uint32(255))
    if code > 127:
        code = np.int32(code - 256)
    return np.float32(code)


@cuda.jit(device=True)
def slot_of(step, tables_at, table_width, row, start, path, position):
    """The slot of a position: from its sequence's table, or, from `start` on, from the token's path."""
    if position < start:
        page = step[tables_at + row * table_width + position // PAGE]
        return np.int64(page) * PAGE + position % PAGE
    return np.int64(step[path + position - start])


def key_product(kind, padded_width):
    """Device function: the dot product of a query (shared memory, at `query`) and the cached key of a slot and head."""
    n_fours = padded_width // (8 if kind == "f16" else 16)

    @cuda.jit(device=True)
    def halves(queries, query, words, scales, head):
        total = np.float32(0)
        for four in range(n_fours):
            a, b, c, d = load4(words, 4 * (head * n_fours + four))
            at = query + 8 * four
            total = cuda.fma(queries[at], low_half(a), total)
            total = cuda.fma(queries[at + 1], high_half(a), total)
            total = cuda.fma(queries[at + 2], low_half(b), total)
            total = cuda.fma(queries[at + 3], high_half(b), total)
            total = cuda.fma(queries[at + 4], low_half(c), total)
            total = cuda.fma(queries[at + 5], high_half(c), total)
            total = cuda.fma(queries[at + 6], low_half(d), total)
            total = cuda.fma(queries[at + 7], high_half(d), total)
        return total

    @cuda.jit(device=True)
    def codes(queries, query, words, scales, head):
        total = np.float32(0)
        for block in range(padded_width // 32):
            part = np.float32(0)
            for word in range(8):
                held = words[8 * (head * (padded_width // 32) + block) + word]
                at = query + 32 * block + 4 * word
                for byte in range(4):
                    part = cuda.fma(queries[at + byte], byte_of(held, byte), part)
            total = cuda.fma(part, half_of(scales[head * (padded_width // 32) + block]), total)
        return total

    return {"f16": halves, "q8": codes}[kind]


def cached_value(kind, padded_width):
    """Device function: column `column` of the cached value of a slot and head, float32."""

    @cuda.jit(device=True)
    def half(words, scales, head, column):
        word = words[(head * padded_width + column) // 2]
        return high_half(word) if column % 2 else low_half(word)

    @cuda.jit(device=True)
    def code(words, scales, head, column):
        at = head * padded_width + column
        return byte_of(words[at // 4], column % 4) * half_of(scales[at // 32])

    return {"f16": half, "q8": code}[kind]
