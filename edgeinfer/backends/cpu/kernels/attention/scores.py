"""The two products of attention over a page of float16 keys and values, a few query rows at a time.

Memory: queries float32[R, stride / 4], keys float16 or float32[key_width, PAGE], scores float32[R,
CHUNK], values of the same kind [PAGE, value_padded], results float32[R, stride / 4]. The sum of a score is one chain
over the head's width, the sum of a result one chain over the chunk's positions, in order, whatever the tile.
"""

from __future__ import annotations

from numba import types
from numba.extending import intrinsic

from edgeinfer.backends.cpu.layout.padding import LANES, SCORE_BYTES
from edgeinfer.backends.cpu.layout.pages import GROUPS
from edgeinfer.jit import emit, simd
from edgeinfer.jit.compiler import inline
from edgeinfer.jit.targets import target

ZEROS = emit.repeated(emit.F32S, 0.0)
LOADS = {"f16": (emit.load_halves, 2 * LANES), "f32": (emit.load_floats, 4 * LANES)}
"""How keys and values are loaded, and bytes of 16 of them: large tiles convert a page to float32 first."""


@intrinsic(prefer_literal=True)
def score_rows(context, floats, isa_name, rows, queries, stride, keys, key_width, ahead, scores):
    """scores[r, p] = sum over k of queries[r, k] * keys[k, p] for `rows` rows: 1 to 6 and all positions of a page.

    All groups of positions at once if they fit in the registers.
    """
    size, n_groups = rows.literal_value, vectors_at_once(isa_name)
    load, n_bytes = LOADS[floats.literal_value]

    def generate(context, builder, signature, values):
        _, _, _, queries, stride, keys, key_width, ahead, scores = values
        early = builder.icmp_signed("!=", ahead, emit.integer(0))
        starts = [builder.add(queries, builder.mul(stride, emit.integer(row))) for row in range(size)]
        for first in range(0, GROUPS, n_groups):

            def body(index, sums, first=first):
                place = builder.add(keys, builder.mul(index, emit.integer(n_bytes * GROUPS)))
                place = builder.add(place, emit.integer(n_bytes * first))
                columns = [load(builder, place, n_bytes * group) for group in range(n_groups)]
                ask_ahead(builder, early, place, ahead, n_bytes * n_groups)
                at, results = builder.mul(index, emit.integer(4)), []
                for row in range(size):
                    query = emit.broadcast_float(builder, builder.add(starts[row], at))
                    own = sums[row * n_groups : (row + 1) * n_groups]
                    results += [emit.fma(builder, query, *each) for each in zip(columns, own, strict=True)]
                return results

            sums = emit.loop(builder, key_width, [ZEROS] * (size * n_groups), body)
            for place, total in enumerate(sums):
                row, group = divmod(place, n_groups)
                emit.store(builder, total, scores, SCORE_BYTES * row + 64 * (first + group), align=4)
        return context.get_dummy_value()

    return types.void(floats, isa_name, rows, *[types.intp] * 6), generate


@intrinsic(prefer_literal=True)
def blend_rows(
    context, floats, isa_name, rows, vectors, shares, values, value_stride, n_positions, ahead, out, stride, adds
):
    """out[r, k] (+)= sum over p of shares[r, p] * values[p, k] for `rows` rows and `vectors` vectors of columns.

    All columns at once if they fit in the registers.
    """
    size, n_vectors = rows.literal_value, vectors.literal_value
    width = min(n_vectors, vectors_at_once(isa_name))
    load, n_bytes = LOADS[floats.literal_value]

    def generate(context, builder, signature, arguments):
        _, _, _, _, shares, values, value_stride, n_positions, ahead, out, stride, adds = arguments
        early = builder.icmp_signed("!=", ahead, emit.integer(0))
        for first in range(0, n_vectors, width):

            def body(index, sums, first=first):
                value = builder.add(values, builder.mul(index, value_stride))
                columns = [load(builder, value, n_bytes * (first + vector)) for vector in range(width)]
                ask_ahead(builder, early, value, ahead, n_bytes * width)
                return blended(builder, shares, index, columns, sums)

            to = builder.add(out, emit.integer(64 * first))
            blend_into(builder, (size, width), n_positions, (to, stride, adds), body)
        return context.get_dummy_value()

    return types.void(floats, isa_name, rows, vectors, *[types.intp] * 8), generate


def vectors_at_once(isa_name):
    """Groups of positions or vectors of columns whose sums, for six rows, fit in the registers."""
    return GROUPS if target(isa_name.literal_value).vectors >= 32 else 2


def ask_ahead(builder, early, address, ahead, n_bytes):
    """Prefetch the `n_bytes` that lie `ahead` bytes after an address; `early` says whether it is time.

    Into the second cache: a page is too large for the first.
    """
    with builder.if_then(early):
        for line in range(0, n_bytes, 64):
            emit.prefetch(builder, builder.add(address, ahead), line, nearness=2)


def blended(builder, shares, index, columns, sums):
    """Add to the sums of some rows the columns of position `index` times each row's share of it."""
    at, results, width = builder.add(shares, builder.mul(index, emit.integer(4))), [], len(columns)
    for row in range(len(sums) // width):
        share = emit.broadcast_float(builder, at, SCORE_BYTES * row)
        own = sums[row * width : (row + 1) * width]
        results += [emit.fma(builder, share, *each) for each in zip(columns, own, strict=True)]
    return results


def blend_into(builder, shape, n_positions, target_rows, body):
    """Run `body` over positions for a tile of (rows, vectors) results that start from zero, or continue if `adds`."""
    (size, width), (out, stride, adds) = shape, target_rows
    rows_at = [builder.add(out, builder.mul(stride, emit.integer(row))) for row in range(size)]
    places = [(address, 64 * vector) for address in rows_at for vector in range(width)]
    goes_on = builder.icmp_signed("!=", adds, emit.integer(0))
    before = [builder.select(goes_on, emit.load_floats(builder, *place), ZEROS) for place in places]
    for total, place in zip(emit.loop(builder, n_positions, before, body), places, strict=True):
        emit.store(builder, total, *place, align=4)


@intrinsic(prefer_literal=True)
def vector_bytes(context, floats):
    """Bytes of 16 keys or values; a constant where it is used."""
    _, found = LOADS[floats.literal_value]

    def generate(context, builder, signature, values):
        return emit.integer(found)

    return types.intp(floats), generate


@intrinsic(prefer_literal=True)
def is_widened(context, floats):
    """Whether pages are converted to float32 first; a constant where it is used."""
    found = floats.literal_value == "f32"

    def generate(context, builder, signature, values):
        return context.get_constant(types.boolean, found)

    return types.boolean(floats), generate


@inline
def widen(source, count, target):
    """Convert 16 * count float16 to float32."""
    for index in range(count):
        simd.store(target + 64 * index, simd.load_halves(source + 32 * index))


@inline
def score_page(floats, isa, queries, stride, rows, keys, key_width, ahead, scores):
    """Scores of any number of rows over a page."""
    row, wide = 0, simd.many_registers(isa)
    while row < rows:
        left, at, to = rows - row, queries + row * stride, scores + row * SCORE_BYTES
        if wide and left >= 6 and left != 8:
            score_rows(floats, isa, 6, at, stride, keys, key_width, ahead, to)
            row += 6
        elif wide and left >= 4:
            score_rows(floats, isa, 4, at, stride, keys, key_width, ahead, to)
            row += 4
        elif left >= 3:
            score_rows(floats, isa, 3, at, stride, keys, key_width, ahead, to)
            row += 3
        elif left == 2:
            score_rows(floats, isa, 2, at, stride, keys, key_width, ahead, to)
            row += 2
        else:
            score_rows(floats, isa, 1, at, stride, keys, key_width, ahead, to)
            row += 1
        ahead = 0


@inline
def blend_columns(floats, isa, shares, rows, values, value_stride, n_positions, ahead, out, stride, adds):
    """Results of any number of rows for 64 columns."""
    row, wide = 0, simd.many_registers(isa)
    while row < rows:
        left, at, to = rows - row, shares + row * SCORE_BYTES, out + row * stride
        if wide and left >= 6 and left != 8:
            blend_rows(floats, isa, 6, 4, at, values, value_stride, n_positions, ahead, to, stride, adds)
            row += 6
        elif wide and left >= 4:
            blend_rows(floats, isa, 4, 4, at, values, value_stride, n_positions, ahead, to, stride, adds)
            row += 4
        elif left >= 3:
            blend_rows(floats, isa, 3, 4, at, values, value_stride, n_positions, ahead, to, stride, adds)
            row += 3
        elif left == 2:
            blend_rows(floats, isa, 2, 4, at, values, value_stride, n_positions, ahead, to, stride, adds)
            row += 2
        else:
            blend_rows(floats, isa, 1, 4, at, values, value_stride, n_positions, ahead, to, stride, adds)
            row += 1
        ahead = 0


@inline
def blend_page(floats, isa, shares, rows, values, value_padded, n_positions, ahead, out, stride, adds):
    """Results of any number of rows over positions of a page, added to `out` if `adds`."""
    step, column = vector_bytes(floats), 0
    value_stride = value_padded // 16 * step
    while value_padded - column >= 64:
        at, to = values + column // 16 * step, out + column * 4
        blend_columns(floats, isa, shares, rows, at, value_stride, n_positions, ahead, to, stride, adds)
        column += 64
    while column < value_padded:
        row, at = 0, values + column // 16 * step
        while rows - row >= 4:
            of, to = shares + row * SCORE_BYTES, out + row * stride + column * 4
            blend_rows(floats, isa, 4, 1, of, at, value_stride, n_positions, ahead, to, stride, adds)
            row += 4
        while row < rows:
            of, to = shares + row * SCORE_BYTES, out + row * stride + column * 4
            blend_rows(floats, isa, 1, 1, of, at, value_stride, n_positions, ahead, to, stride, adds)
            row += 1
        column += 16
