"""The two products of attention over a page of int8 keys and values, a few query rows at a time.

Memory: queries as records of `kernels.matmul.activations`, uint8[R, stride] with one of 64 bytes per block; pages as
`layout.pages` lays them out; scores float32[R, CHUNK], results float32[R, stride / 4]. The dot of a query and a
key is an exact integer per block of 32 columns, and one float chain runs over the blocks. Values are blended in float:
one chain over the chunk's positions of (share * scale of the position) * code. The tile never changes the bits.
"""

from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from edgeinfer.backends.cpu.kernels.attention.scores import ZEROS, ask_ahead, blend_into, blended, many_registers
from edgeinfer.backends.cpu.kernels.matmul.activations import round_block
from edgeinfer.backends.cpu.layout import rounded as act
from edgeinfer.backends.cpu.layout.padding import BLOCK, LANES, SCORE_BYTES
from edgeinfer.backends.cpu.layout.pages import GROUPS, SCALE_BYTES, VECTORS
from edgeinfer.graph.step import PAGE
from edgeinfer.jit import emit, simd
from edgeinfer.jit.compiler import inline
from edgeinfer.jit.targets import target

CODES = ir.VectorType(emit.I8, LANES)
KEY_BLOCK_BYTES = PAGE * BLOCK
"""Bytes of the key codes of a block."""
VALUE_BLOCK_BYTES = PAGE * (BLOCK + SCALE_BYTES)
"""Bytes of a block of values, or of keys, of a page, including their scales."""


@inline
def round_query(source, scale, key_padded, records):
    """Round a query times `scale` to int8, in blocks of 32 columns."""
    factor = simd.splat(scale)
    for block in range((key_padded + BLOCK - 1) // BLOCK):
        low, high = simd.load(source + 128 * block), simd.splat(np.float32(0.0))
        if block * BLOCK + LANES < key_padded:
            high = simd.load(source + 128 * block + 64)
        round_block(simd.mul(low, factor), simd.mul(high, factor), records + act.RECORD_BYTES * block)


@intrinsic(prefer_literal=True)
def score_rows(context, isa_name, rows, groups, queries, stride, keys, scales, blocks, ahead, scores):
    """scores[r, p] for `rows` rows and `groups` groups of 16 positions, from their keys' codes and scales."""
    isa, size, n_groups = target(isa_name.literal_value), rows.literal_value, groups.literal_value

    def generate(context, builder, signature, values):
        _, _, _, queries, stride, keys, scales, blocks, ahead, scores = values
        early = builder.icmp_signed("!=", ahead, emit.integer(0))
        starts = [builder.add(queries, builder.mul(stride, emit.integer(row))) for row in range(size)]

        def body(block, sums):
            records = [builder.add(start, builder.mul(block, emit.integer(act.RECORD_BYTES))) for start in starts]
            codes = builder.add(keys, builder.mul(block, emit.integer(KEY_BLOCK_BYTES)))
            dots = [[_start(builder, isa, record) for _ in range(n_groups)] for record in records]
            for vector in range(VECTORS):
                at = builder.add(codes, emit.integer(4 * PAGE * vector))
                weights = [emit.load(builder, at, emit.BYTES, 64 * group, 64) for group in range(n_groups)]
                ask_ahead(builder, early, at, ahead, 64 * n_groups)
                for record, own in zip(records, dots, strict=True):
                    query = emit.broadcast_bytes(builder, record, 4 * vector)
                    for dot, four in zip(own, weights, strict=True):
                        dot.step(builder, four, query)
            at = builder.add(scales, builder.mul(block, emit.integer(SCALE_BYTES * PAGE)))
            ask_ahead(builder, early, at, ahead, SCALE_BYTES * LANES * n_groups)
            factors = [emit.load_halves(builder, at, SCALE_BYTES * LANES * group) for group in range(n_groups)]
            results = []
            for row, record in enumerate(records):
                scale = emit.broadcast_float(builder, record, act.SCALE_AT)
                for group, factor in enumerate(factors):
                    dot = builder.sitofp(dots[row][group].finish(builder), emit.F32S)
                    before = sums[row * n_groups + group]
                    results.append(emit.fma(builder, builder.fmul(dot, scale), factor, before))
            return results

        sums = emit.loop(builder, blocks, [ZEROS] * (size * n_groups), body)
        for place, total in enumerate(sums):
            row, group = divmod(place, n_groups)
            emit.store(builder, total, scores, SCORE_BYTES * row + 64 * group, align=4)
        return context.get_dummy_value()

    return types.void(isa_name, rows, groups, *[types.intp] * 7), generate


def _start(builder, isa, record):
    """A dot that starts with the correction for the keys' offset of 128."""
    if isa.signed_dot is not None:
        return isa.signed_dot(builder, emit.repeated(emit.I32S, 0))
    return isa.dot(builder, emit.splat(builder, emit.load(builder, record, emit.I32, act.LESS_128_AT, 4)), 8)


@intrinsic(prefer_literal=True)
def blend_rows(context, rows, vectors, shares, values, n_positions, ahead, out, stride, adds):
    """out[r, k] (+)= sum over p of shares[r, p] * codes[p, k] for `rows` rows and 16 * `vectors` columns of a block."""
    size, width = rows.literal_value, vectors.literal_value

    def generate(context, builder, signature, arguments):
        _, _, shares, values, n_positions, ahead, out, stride, adds = arguments
        early = builder.icmp_signed("!=", ahead, emit.integer(0))

        def body(index, sums):
            value = builder.add(values, builder.mul(index, emit.integer(BLOCK)))
            codes = [emit.load(builder, value, CODES, LANES * vector) for vector in range(width)]
            ask_ahead(builder, early, value, ahead, BLOCK)
            columns = [builder.sitofp(builder.sext(each, emit.I32S), emit.F32S) for each in codes]
            return blended(builder, shares, index, columns, sums)

        blend_into(builder, (size, width), n_positions, (out, stride, adds), body)
        return context.get_dummy_value()

    return types.void(rows, vectors, *[types.intp] * 7), generate


@inline
def score_tile(isa, rows, groups, queries, stride, keys, blocks, ahead, scores):
    """Scores of some rows over a page, `groups` groups at a time."""
    scales = keys + PAGE * BLOCK * blocks
    for group in range(0, GROUPS, groups):
        codes_at, scales_at = keys + group * 64, scales + group * SCALE_BYTES * LANES
        score_rows(isa, rows, groups, queries, stride, codes_at, scales_at, blocks, ahead, scores + group * 64)


@inline
def score_page(isa, queries, stride, rows, keys, blocks, ahead, scores):
    """Scores of any number of rows over a page."""
    row, wide = 0, many_registers(isa)
    while row < rows:
        left, at, to = rows - row, queries + row * stride, scores + row * SCORE_BYTES
        if wide and left >= 6 and left != 8:
            score_tile(isa, 6, 2, at, stride, keys, blocks, ahead, to)
            row += 6
        elif left >= 4:
            if wide:
                score_tile(isa, 4, 2, at, stride, keys, blocks, ahead, to)
            else:
                score_tile(isa, 4, 1, at, stride, keys, blocks, ahead, to)
            row += 4
        elif wide and left >= 3:
            score_tile(isa, 3, 4, at, stride, keys, blocks, ahead, to)
            row += 3
        elif left >= 2:
            if wide:
                score_tile(isa, 2, 4, at, stride, keys, blocks, ahead, to)
            else:
                score_tile(isa, 2, 2, at, stride, keys, blocks, ahead, to)
            row += 2
        else:
            score_tile(isa, 1, 4, at, stride, keys, blocks, ahead, to)
            row += 1
        ahead = 0


@inline
def scale_shares(shares, rows, scales, n_positions, out):
    """out[r, p] = shares[r, p] * scales[p], for whole vectors of 16 positions."""
    for position in range(0, n_positions, LANES):
        scale = simd.load_halves(scales + 2 * position)
        for at in range(4 * position, 4 * position + rows * SCORE_BYTES, SCORE_BYTES):
            simd.store(out + at, simd.mul(simd.load(shares + at), scale))


@inline
def blend_block(isa, vectors, shares, rows, values, n_positions, ahead, out, stride, adds):
    """Results of any number of rows for the columns of one block."""
    row, wide = 0, many_registers(isa)
    while row < rows:
        left, at, to = rows - row, shares + row * SCORE_BYTES, out + row * stride
        if wide and left >= 8:
            blend_rows(8, vectors, at, values, n_positions, ahead, to, stride, adds)
            row += 8
        elif left >= 3:
            blend_rows(3, vectors, at, values, n_positions, ahead, to, stride, adds)
            row += 3
        elif left == 2:
            blend_rows(2, vectors, at, values, n_positions, ahead, to, stride, adds)
            row += 2
        else:
            blend_rows(1, vectors, at, values, n_positions, ahead, to, stride, adds)
            row += 1
        ahead = 0


@inline
def blend_page(isa, shares, rows, values, value_padded, first, n_seen, scaled, ahead, out, stride, adds):
    """Results of any number of rows over positions first..n_seen-1 of a page, added to `out` if `adds`.

    `scaled` is scratch of float32[R, CHUNK]; shares beyond n_seen, up to a whole vector, must be numbers.
    """
    blocks = (value_padded + BLOCK - 1) // BLOCK
    scales = values + PAGE * BLOCK * blocks
    for block in range(blocks):
        scale_shares(shares, rows, scales + 2 * PAGE * block, n_seen, scaled)
        at, to, count = values + (PAGE * block + first) * BLOCK, out + 128 * block, n_seen - first
        if block * BLOCK + LANES < value_padded:
            blend_block(isa, 2, scaled + 4 * first, rows, at, count, ahead, to, stride, adds)
        else:
            blend_block(isa, 1, scaled + 4 * first, rows, at, count, ahead, to, stride, adds)
