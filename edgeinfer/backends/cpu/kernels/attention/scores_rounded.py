"""The two products of attention over a page of rounded keys and values, a few query rows at a time.

Memory: queries as records of `kernels.matmul.activations`, uint8[R, stride] with one of 64 bytes per block; pages as
`layout.pages` lays them out; scores float32[R, CHUNK], results float32[R, stride / 4]. The dot of a query and a
key is an exact integer for each scale of the key, and one float chain runs over them. Values are blended in float: one
chain over the chunk's positions of (share * scale of the position) * number. The tile never changes the bits. Codes of
4 bits come two to a byte; their numbers are code - 7.5, which keys owe to the sum of the query.
"""

from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from edgeinfer.backends.cpu.kernels.attention.forms import forms_of, has_small_keys, has_small_values
from edgeinfer.backends.cpu.kernels.attention.hadamard import rotate
from edgeinfer.backends.cpu.kernels.attention.scores import ZEROS, ask_ahead, blend_into, blended
from edgeinfer.backends.cpu.kernels.matmul.activations import round_block
from edgeinfer.backends.cpu.layout import rounded as act
from edgeinfer.backends.cpu.layout.padding import BLOCK, LANES, SCORE_BYTES
from edgeinfer.backends.cpu.layout.pages import GROUPS, SCALE_BYTES
from edgeinfer.backends.meanings import MIDDLE
from edgeinfer.graph.step import PAGE
from edgeinfer.jit import emit, simd
from edgeinfer.jit.compiler import inline
from edgeinfer.jit.targets import target

CODES = ir.VectorType(emit.I8, LANES)
LOW_NIBBLES, FOUR = emit.repeated(emit.BYTES, 15), emit.repeated(emit.BYTES, 4)


@inline
def round_query(kind, source, args, records):
    """Rotate a query times the scale of scores, in the room of its records, and round it in blocks of 32 columns.

    For keys of 4 bits, the records' sums of half a block are turned into what their middle costs.
    """
    rotate(source, args.key_padded, args.key_width, args.scale, records)
    for block in range((args.key_padded + BLOCK - 1) // BLOCK):
        low, high = simd.load(records + 128 * block), simd.splat(np.float32(0.0))
        if block * BLOCK + LANES < args.key_padded:
            high = simd.load(records + 128 * block + 64)
        record = records + act.RECORD_BYTES * block
        round_block(low, high, record)
        if has_small_keys(kind):
            for half in range(record + act.HALF_SUMS_AT, record + act.HALF_SUMS_AT + 8, 4):
                simd.store_float(half, simd.load_float(half) * np.float32(-MIDDLE))


@intrinsic(prefer_literal=True)
def score_rows(context, kind, isa_name, rows, groups, queries, stride, keys, scales, blocks, ahead, scores):
    """scores[r, p] for `rows` rows and `groups` groups of 16 positions, from their keys' codes and scales."""
    isa, size, n_groups = target(isa_name.literal_value), rows.literal_value, groups.literal_value
    part = KEY_PARTS[forms_of(kind)[0]]

    def generate(context, builder, signature, values):
        _, _, _, _, queries, stride, keys, scales, blocks, ahead, scores = values
        early = builder.icmp_signed("!=", ahead, emit.integer(0))
        starts = [builder.add(queries, builder.mul(stride, emit.integer(row))) for row in range(size)]

        def body(block, sums):
            records = [builder.add(start, builder.mul(block, emit.integer(act.RECORD_BYTES))) for start in starts]
            codes = builder.add(keys, builder.mul(block, emit.integer(part.block_bytes)))
            factors_at = builder.add(scales, builder.mul(block, emit.integer(part.n_scales * SCALE_BYTES * PAGE)))
            for number in range(part.n_scales):
                dots = [[part.start(builder, isa, record) for _ in range(n_groups)] for record in records]
                for vector in range(part.n_vectors):
                    at = builder.add(codes, emit.integer(4 * PAGE * vector))
                    weights = [part.weights(builder, at, 64 * group, number) for group in range(n_groups)]
                    if number == 0:
                        ask_ahead(builder, early, at, ahead, 64 * n_groups)
                    for record, own in zip(records, dots, strict=True):
                        query = emit.broadcast_bytes(builder, record, 4 * (part.n_vectors * number + vector))
                        for dot, four in zip(own, weights, strict=True):
                            dot.step(builder, four, query)
                at = builder.add(factors_at, emit.integer(SCALE_BYTES * PAGE * number))
                ask_ahead(builder, early, at, ahead, SCALE_BYTES * LANES * n_groups)
                factors = [emit.load_halves(builder, at, SCALE_BYTES * LANES * group) for group in range(n_groups)]
                scaled = [part.scaled(builder, record, number, own) for record, own in zip(records, dots, strict=True)]
                places = zip((each for own in scaled for each in own), factors * size, sums, strict=True)
                sums = [emit.fma(builder, *each) for each in places]
                codes = emit.hidden(builder, codes) if number + 1 < part.n_scales else codes
            return sums

        sums = emit.loop(builder, blocks, [ZEROS] * (size * n_groups), body)
        for place, total in enumerate(sums):
            row, group = divmod(place, n_groups)
            emit.store(builder, total, scores, SCORE_BYTES * row + 64 * group, align=4)
        return context.get_dummy_value()

    return types.void(kind, isa_name, rows, groups, *[types.intp] * 7), generate


class ByteKeys:
    """Keys of 8 bits: one scale for the 32 columns of a block."""

    n_vectors, n_scales, block_bytes = 8, 1, PAGE * BLOCK

    @staticmethod
    def start(builder, isa, record):
        """A dot that starts with the correction for the keys' offset of 128."""
        if isa.signed_dot is not None:
            return isa.signed_dot(builder, emit.repeated(emit.I32S, 0))
        return isa.dot(builder, emit.splat(builder, emit.load(builder, record, emit.I32, act.LESS_128_AT, 4)), 8)

    @staticmethod
    def weights(builder, address, offset, number):
        """The codes of four columns and 16 positions."""
        return emit.load(builder, address, emit.BYTES, offset, 64)

    @staticmethod
    def scaled(builder, record, number, dots):
        """Dots times the scale of the query."""
        scale = emit.broadcast_float(builder, record, act.SCALE_AT)
        return [builder.fmul(builder.sitofp(dot.finish(builder), emit.F32S), scale) for dot in dots]


class NibbleKeys:
    """Keys of 4 bits: a scale for each half of a block; the second half lies in the high bits of the same bytes.

    Both halves load the same bytes, from an address that LLVM does not know again: it would hold them in registers that
    the dots need.
    """

    n_vectors, n_scales, block_bytes = 4, 2, PAGE * BLOCK // 2

    @staticmethod
    def start(builder, isa, record):
        """A dot of the codes as they are."""
        return isa.dot(builder, emit.repeated(emit.I32S, 0), 4)

    @staticmethod
    def weights(builder, address, offset, number):
        """The codes of four columns of one half and 16 positions."""
        codes = emit.load(builder, address, emit.BYTES, offset, 64)
        if number == 0:
            return builder.and_(codes, LOW_NIBBLES)
        return builder.lshr(codes, FOUR)

    @staticmethod
    def scaled(builder, record, number, dots):
        """Dots times the scale of the query, less the middle of the codes."""
        scale = emit.broadcast_float(builder, record, act.SCALE_AT)
        middle = emit.broadcast_float(builder, record, act.HALF_SUMS_AT + 4 * number)
        return [emit.fma(builder, builder.sitofp(dot.finish(builder), emit.F32S), scale, middle) for dot in dots]


KEY_PARTS = {"q8": ByteKeys, "q4": NibbleKeys}


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


@intrinsic(prefer_literal=True)
def blend_small_rows(context, isa_name, rows, vectors, low, high, values, n_positions, ahead, out, stride, adds):
    """`blend_rows` of codes of 4 bits; `low`, `high`: shares for the first and the last 16 columns of the block."""
    isa, size, width = target(isa_name.literal_value), rows.literal_value, vectors.literal_value

    def generate(context, builder, signature, arguments):
        _, _, _, low, high, values, n_positions, ahead, out, stride, adds = arguments
        early = builder.icmp_signed("!=", ahead, emit.integer(0))

        def body(index, sums):
            value = builder.add(values, builder.mul(index, emit.integer(BLOCK // 2)))
            codes = builder.zext(emit.load(builder, value, CODES), emit.I32S)
            ask_ahead(builder, early, value, ahead, BLOCK // 2)
            results = list(sums)
            for half, shares in enumerate((low, high)[:width]):
                columns = [isa.levels(builder, codes, half)]
                results[half::width] = blended(builder, shares, index, columns, sums[half::width])
            return results

        blend_into(builder, (size, width), n_positions, (out, stride, adds), body)
        return context.get_dummy_value()

    return types.void(isa_name, rows, vectors, *[types.intp] * 8), generate


@inline
def score_tile(kind, isa, rows, groups, queries, stride, keys, blocks, ahead, scores):
    """Scores of some rows over a page, `groups` groups at a time."""
    scales = keys + PAGE * BLOCK * blocks
    if has_small_keys(kind):
        scales = keys + PAGE * BLOCK // 2 * blocks
    for group in range(0, GROUPS, groups):
        codes_at, scales_at = keys + group * 64, scales + group * SCALE_BYTES * LANES
        score_rows(kind, isa, rows, groups, queries, stride, codes_at, scales_at, blocks, ahead, scores + group * 64)


@inline
def score_page(kind, isa, queries, stride, rows, keys, blocks, ahead, scores):
    """Scores of any number of rows over a page."""
    row, wide = 0, simd.many_registers(isa)
    while row < rows:
        left, at, to = rows - row, queries + row * stride, scores + row * SCORE_BYTES
        if wide and left >= 6 and left != 8:
            score_tile(kind, isa, 6, 2, at, stride, keys, blocks, ahead, to)
            row += 6
        elif left >= 4:
            if wide:
                score_tile(kind, isa, 4, 2, at, stride, keys, blocks, ahead, to)
            else:
                score_tile(kind, isa, 4, 1, at, stride, keys, blocks, ahead, to)
            row += 4
        elif wide and left >= 3:
            score_tile(kind, isa, 3, 4, at, stride, keys, blocks, ahead, to)
            row += 3
        elif left >= 2:
            if wide:
                score_tile(kind, isa, 2, 4, at, stride, keys, blocks, ahead, to)
            else:
                score_tile(kind, isa, 2, 2, at, stride, keys, blocks, ahead, to)
            row += 2
        else:
            score_tile(kind, isa, 1, 4, at, stride, keys, blocks, ahead, to)
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
    row, wide = 0, simd.many_registers(isa)
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
def blend_small_block(isa, vectors, low, high, rows, values, n_positions, ahead, out, stride, adds):
    """`blend_block` of codes of 4 bits."""
    row, wide = 0, simd.many_registers(isa)
    while row < rows:
        left, skip, to = rows - row, row * SCORE_BYTES, out + row * stride
        of, and_of = low + skip, high + skip
        if wide and left >= 8:
            blend_small_rows(isa, 8, vectors, of, and_of, values, n_positions, ahead, to, stride, adds)
            row += 8
        elif wide and left >= 4:
            blend_small_rows(isa, 4, vectors, of, and_of, values, n_positions, ahead, to, stride, adds)
            row += 4
        elif left >= 3 and left != 4:
            blend_small_rows(isa, 3, vectors, of, and_of, values, n_positions, ahead, to, stride, adds)
            row += 3
        elif left >= 2:
            blend_small_rows(isa, 2, vectors, of, and_of, values, n_positions, ahead, to, stride, adds)
            row += 2
        else:
            blend_small_rows(isa, 1, vectors, of, and_of, values, n_positions, ahead, to, stride, adds)
            row += 1
        ahead = 0


@inline
def blend_page(kind, isa, shares, rows, values, value_padded, first, n_seen, scaled, ahead, out, stride, adds):
    """Results of any number of rows over positions first..n_seen-1 of a page, added to `out` if `adds`.

    `scaled` is two pieces of scratch of float32[R, CHUNK], the second for values of 4 bits; shares beyond n_seen, up to
    a whole vector, must be numbers.
    """
    blocks, count, (low, high) = (value_padded + BLOCK - 1) // BLOCK, n_seen - first, scaled
    for block in range(blocks):
        to, is_whole = out + 128 * block, block * BLOCK + LANES < value_padded
        if has_small_values(kind):
            scales = values + PAGE * BLOCK // 2 * blocks + 4 * PAGE * block
            scale_shares(shares, rows, scales, n_seen, low)
            at, of, and_of = values + (PAGE * block + first) * BLOCK // 2, low + 4 * first, high + 4 * first
            if is_whole:
                scale_shares(shares, rows, scales + 2 * PAGE, n_seen, high)
                blend_small_block(isa, 2, of, and_of, rows, at, count, ahead, to, stride, adds)
            else:
                blend_small_block(isa, 1, of, and_of, rows, at, count, ahead, to, stride, adds)
        else:
            scale_shares(shares, rows, values + PAGE * BLOCK * blocks + 2 * PAGE * block, n_seen, low)
            at, of = values + (PAGE * block + first) * BLOCK, low + 4 * first
            if is_whole:
                blend_block(isa, 2, of, rows, at, count, ahead, to, stride, adds)
            else:
                blend_block(isa, 1, of, rows, at, count, ahead, to, stride, adds)
