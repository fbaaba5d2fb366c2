"""The two products of attention over a chunk of positions, a few query rows at a time, and the softmax between them.

Memory: queries float32[R, stride / 4], keys float16[head_width, PAGE] of each page, scores float32[R, CHUNK], values
float16[PAGE, head_padded] of each page, results float32[R, stride / 4]. The chain of a score runs over the head's
width, the chain of a result over the chunk's positions, in order, whatever R is.
"""

from __future__ import annotations

import numpy as np
from numba import types
from numba.extending import intrinsic

from edgeinfer.backends.base import PAGE
from edgeinfer.backends.cpu import emit, simd
from edgeinfer.backends.cpu.jit import inline
from edgeinfer.backends.cpu.layout import CHUNK

SCORE_BYTES = CHUNK * 4
LOWEST = -1e30


@intrinsic(prefer_literal=True)
def score_rows(context, rows, queries, stride, keys, head_width, values_ahead, keys_ahead, scores):
    """scores[r, p] = sum over k of queries[r, k] * keys[k, p] for `rows` rows and all positions of a page.

    What lies `values_ahead` and `keys_ahead` bytes further on is asked for early, unless `keys_ahead` is 0.
    """
    size, vectors = rows.literal_value, PAGE // emit.LANES

    def generate(context, builder, signature, values):
        _, queries, stride, keys, head_width, values_ahead, keys_ahead, scores = values
        early = builder.icmp_signed("!=", keys_ahead, emit.integer(0))
        starts = [builder.add(queries, builder.mul(stride, emit.integer(row))) for row in range(size)]

        def body(index, sums):
            key = builder.add(keys, builder.mul(index, emit.integer(PAGE * 2)))
            with builder.if_then(early):
                for ahead in (values_ahead, keys_ahead):
                    for line in range(0, PAGE * 2, 64):
                        emit.prefetch(builder, builder.add(key, ahead), line)
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
            row, vector = divmod(place, vectors)
            emit.store(builder, total, scores, SCORE_BYTES * row + 64 * vector, align=4)
        return context.get_dummy_value()

    return types.void(rows, *[types.intp] * 7), generate


@intrinsic(prefer_literal=True)
def blend_rows(context, rows, vectors, shares, values, value_stride, n_positions, out, stride, adds):
    """out[r, k] (+)= sum over p of shares[r, p] * values[p, k] for `rows` rows and `vectors` vectors of columns."""
    size, width = rows.literal_value, vectors.literal_value

    def generate(context, builder, signature, arguments):
        _, _, shares, values, value_stride, n_positions, out, stride, adds = arguments
        rows_at = [builder.add(out, builder.mul(stride, emit.integer(row))) for row in range(size)]
        goes_on = builder.icmp_signed("!=", adds, emit.integer(0))
        zeros = emit.repeated(emit.F32S, 0.0)
        before = [
            builder.select(goes_on, emit.load_floats(builder, address, 64 * vector), zeros)
            for address in rows_at
            for vector in range(width)
        ]

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

        sums = emit.loop(builder, n_positions, before, body)
        for row, address in enumerate(rows_at):
            for vector in range(width):
                emit.store(builder, sums[row * width + vector], address, 64 * vector, align=4)
        return context.get_dummy_value()

    return types.void(rows, vectors, *[types.intp] * 7), generate


@inline
def score_page(queries, stride, rows, keys, head_width, values_ahead, keys_ahead, scores):
    """Scores of any number of rows over one page."""
    row = 0
    while rows - row >= 6:
        at, to = queries + row * stride, scores + row * SCORE_BYTES
        score_rows(6, at, stride, keys, head_width, values_ahead, keys_ahead, to)
        row += 6
        keys_ahead = 0
    if rows - row >= 4:
        at, to = queries + row * stride, scores + row * SCORE_BYTES
        score_rows(4, at, stride, keys, head_width, values_ahead, keys_ahead, to)
        row += 4
        keys_ahead = 0
    at, to = queries + row * stride, scores + row * SCORE_BYTES
    if rows - row == 3:
        score_rows(3, at, stride, keys, head_width, values_ahead, keys_ahead, to)
    elif rows - row == 2:
        score_rows(2, at, stride, keys, head_width, values_ahead, keys_ahead, to)
    elif rows - row == 1:
        score_rows(1, at, stride, keys, head_width, values_ahead, keys_ahead, to)


@inline
def blend_columns(shares, rows, values, value_stride, n_positions, out, stride, adds):
    """Blends of any number of rows over positions of one page, 64 columns."""
    row = 0
    while rows - row >= 6:
        at, to = shares + row * SCORE_BYTES, out + row * stride
        blend_rows(6, 4, at, values, value_stride, n_positions, to, stride, adds)
        row += 6
    if rows - row >= 4:
        at, to = shares + row * SCORE_BYTES, out + row * stride
        blend_rows(4, 4, at, values, value_stride, n_positions, to, stride, adds)
        row += 4
    at, to = shares + row * SCORE_BYTES, out + row * stride
    if rows - row == 3:
        blend_rows(3, 4, at, values, value_stride, n_positions, to, stride, adds)
    elif rows - row == 2:
        blend_rows(2, 4, at, values, value_stride, n_positions, to, stride, adds)
    elif rows - row == 1:
        blend_rows(1, 4, at, values, value_stride, n_positions, to, stride, adds)


@inline
def blend_page(shares, rows, values, head_padded, n_positions, out, stride, adds):
    """Blends of any number of rows over positions of one page, added to `out` if `adds`."""
    value_stride = head_padded * 2
    column = 0
    while head_padded - column >= 64:
        blend_columns(shares, rows, values + column * 2, value_stride, n_positions, out + column * 4, stride, adds)
        column += 64
    while column < head_padded:
        row = 0
        while rows - row >= 4:
            at, to = shares + row * SCORE_BYTES, out + row * stride + column * 4
            blend_rows(4, 1, at, values + column * 2, value_stride, n_positions, to, stride, adds)
            row += 4
        while row < rows:
            at, to = shares + row * SCORE_BYTES, out + row * stride + column * 4
            blend_rows(1, 1, at, values + column * 2, value_stride, n_positions, to, stride, adds)
            row += 1
        column += 16


@inline
def cap_scores(scores, cap, n_vectors):
    """scores = cap * tanh(scores / cap)."""
    limit = simd.splat(cap)
    for index in range(0, 64 * n_vectors, 64):
        simd.store(scores + index, simd.mul(limit, simd.tanh(simd.div(simd.load(scores + index), limit))))


@inline
def softmax_chunk(scores, first, stop, n_vectors):
    """Turn scores of positions first..stop-1 into e^(score - largest), the rest into 0. Returns (largest, sum)."""
    lowest = simd.splat(np.float32(LOWEST))
    largest, total = lowest, simd.splat(np.float32(0.0))
    for vector in range(n_vectors):
        value = simd.load(scores + 64 * vector)
        value = simd.keep_lanes(value, first - 16 * vector, stop - 16 * vector, np.float32(LOWEST))
        largest = simd.maximum(largest, value)
    most = simd.max_lanes(largest)
    for vector in range(n_vectors):
        value = simd.exp(simd.sub(simd.load(scores + 64 * vector), simd.splat(most)))
        value = simd.keep_lanes(value, first - 16 * vector, stop - 16 * vector, np.float32(0.0))
        simd.store(scores + 64 * vector, value)
        total = simd.add(total, value)
    return most, simd.sum_lanes(total)
