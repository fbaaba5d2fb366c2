"""The two products of attention over one page, for a few query rows at a time, and the softmax between them.

Memory: queries float32[R, stride / 4], keys float16[head_width, PAGE], scores float32[R, PAGE], values
float16[PAGE, head_padded], results float32[R, stride / 4]. The chain of a score runs over the head's width, the chain
of a result over the page's positions, in order, whatever R is.
"""

from __future__ import annotations

import numpy as np
from numba import types
from numba.extending import intrinsic

from edgeinfer.backends.base import PAGE
from edgeinfer.backends.cpu import emit, simd
from edgeinfer.backends.cpu.jit import inline
from edgeinfer.backends.cpu.kernels.rows import tanh

SCORE_BYTES = PAGE * 4
LOWEST = -1e30


@intrinsic(prefer_literal=True)
def score_rows(context, rows, queries, stride, keys, head_width, scores):
    """scores[r, p] = sum over k of queries[r, k] * keys[k, p] for `rows` rows and all positions of the page."""
    size, vectors = rows.literal_value, PAGE // emit.LANES

    def generate(context, builder, signature, values):
        _, queries, stride, keys, head_width, scores = values
        starts = [builder.add(queries, builder.mul(stride, emit.integer(row))) for row in range(size)]

        def body(index, sums):
            key = builder.add(keys, builder.mul(index, emit.integer(PAGE * 2)))
            columns = [emit.load_halves(builder, key, 32 * vector) for vector in range(vectors)]
            at = builder.mul(index, emit.integer(4))
            results = []
            for row in range(size):
                query = emit.broadcast_float(builder, builder.add(starts[row], at))
                for vector in range(vectors):
                    results.append(emit.fma(builder, query, columns[vector], sums[row * vectors + vector]))
            return results

        sums = emit.loop(builder, head_width, [emit.repeated(emit.F32S, 0.0)] * (size * vectors), body)
        for place, total in enumerate(sums):
            emit.store(builder, total, scores, 64 * place, align=4)
        return context.get_dummy_value()

    return types.void(rows, *[types.intp] * 5), generate


@intrinsic(prefer_literal=True)
def blend_rows(context, rows, vectors, shares, values, value_stride, n_positions, out, stride):
    """out[r, k] = sum over p of shares[r, p] * values[p, k] for `rows` rows and `vectors` vectors of columns."""
    size, width = rows.literal_value, vectors.literal_value

    def generate(context, builder, signature, arguments):
        _, _, shares, values, value_stride, n_positions, out, stride = arguments

        def body(index, sums):
            value = builder.add(values, builder.mul(index, value_stride))
            columns = [emit.load_halves(builder, value, 32 * vector) for vector in range(width)]
            at = builder.add(shares, builder.mul(index, emit.integer(4)))
            results = []
            for row in range(size):
                share = emit.broadcast_float(builder, at, SCORE_BYTES * row)
                for vector in range(width):
                    results.append(emit.fma(builder, share, columns[vector], sums[row * width + vector]))
            return results

        sums = emit.loop(builder, n_positions, [emit.repeated(emit.F32S, 0.0)] * (size * width), body)
        for row in range(size):
            address = builder.add(out, builder.mul(stride, emit.integer(row)))
            for vector in range(width):
                emit.store(builder, sums[row * width + vector], address, 64 * vector, align=4)
        return context.get_dummy_value()

    return types.void(rows, vectors, *[types.intp] * 6), generate


@inline
def score_page(queries, stride, rows, keys, head_width, scores):
    """Scores of any number of rows over one page."""
    left = rows
    while left >= 4:
        score_rows(4, queries, stride, keys, head_width, scores)
        left -= 4
        queries += 4 * stride
        scores += 4 * SCORE_BYTES
    if left == 3:
        score_rows(3, queries, stride, keys, head_width, scores)
        left = 0
    while left > 0:
        score_rows(1, queries, stride, keys, head_width, scores)
        left -= 1
        queries += stride
        scores += SCORE_BYTES


@inline
def blend_page(shares, rows, values, head_padded, n_positions, out, stride):
    """Blends of any number of rows over the first positions of one page."""
    value_stride = head_padded * 2
    column = 0
    while head_padded - column >= 64:
        row = 0
        while rows - row >= 3:
            at, to = shares + row * SCORE_BYTES, out + row * stride + column * 4
            blend_rows(3, 4, at, values + column * 2, value_stride, n_positions, to, stride)
            row += 3
        while row < rows:
            at, to = shares + row * SCORE_BYTES, out + row * stride + column * 4
            blend_rows(1, 4, at, values + column * 2, value_stride, n_positions, to, stride)
            row += 1
        column += 64
    while column < head_padded:
        for row in range(rows):
            at, to = shares + row * SCORE_BYTES, out + row * stride + column * 4
            blend_rows(1, 1, at, values + column * 2, value_stride, n_positions, to, stride)
        column += 16


@inline
def cap_scores(scores, cap):
    """scores = cap * tanh(scores / cap) over a page."""
    limit = simd.splat(cap)
    for index in range(0, SCORE_BYTES, 64):
        simd.store(scores + index, simd.mul(limit, tanh(simd.div(simd.load(scores + index), limit))))


@inline
def softmax_page(scores, first, stop):
    """Turn scores of positions first..stop-1 into e^(score - largest), the rest into 0. Returns (largest, sum)."""
    lowest, zero = np.float32(LOWEST), np.float32(0.0)
    a = simd.keep_lanes(simd.load(scores), first, stop, lowest)
    b = simd.keep_lanes(simd.load(scores + 64), first - 16, stop - 16, lowest)
    c = simd.keep_lanes(simd.load(scores + 128), first - 32, stop - 32, lowest)
    d = simd.keep_lanes(simd.load(scores + 192), first - 48, stop - 48, lowest)
    largest = simd.max_lanes(simd.maximum(simd.maximum(a, b), simd.maximum(c, d)))
    most = simd.splat(largest)
    a = simd.keep_lanes(simd.exp(simd.sub(a, most)), first, stop, zero)
    b = simd.keep_lanes(simd.exp(simd.sub(b, most)), first - 16, stop - 16, zero)
    c = simd.keep_lanes(simd.exp(simd.sub(c, most)), first - 32, stop - 32, zero)
    d = simd.keep_lanes(simd.exp(simd.sub(d, most)), first - 48, stop - 48, zero)
    simd.store(scores, a)
    simd.store(scores + 64, b)
    simd.store(scores + 128, c)
    simd.store(scores + 192, d)
    return largest, simd.sum_lanes(simd.add(simd.add(a, b), simd.add(c, d)))
