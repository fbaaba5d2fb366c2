"""Rounding eight blocks of 32 columns of a row to int8 at once, so that horizontal steps are shared by all of them.

Memory: source and weight float32[256], records as `layout.rounded` lays them out, `step` bytes apart. Gives the same
bits, block by block, as its twin `activations.round_block`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from edgeinfer.backends.cpu.layout.padding import BLOCK, LANES
from edgeinfer.backends.cpu.layout.rounded import SCALE_AT, SMALLEST
from edgeinfer.jit import curves, emit
from edgeinfer.jit.emit import Builder, Value

BLOCKS = 8
COLUMNS = BLOCKS * BLOCK
PAIRS = ir.VectorType(emit.I64, BLOCKS)
CODES = ir.VectorType(emit.I8, LANES)
SWAPPED = [lane ^ 1 for lane in range(LANES)]


def shuffled(builder: Builder, first: Value, second: Value, lanes: Sequence[int]) -> Value:
    """The named lanes of two vectors; the second vector's lanes are numbered after the first's."""
    return builder.shuffle_vector(first, second, ir.Constant(ir.VectorType(emit.I32, len(lanes)), list(lanes)))


def reduced(builder: Builder, vectors: Sequence[Value], combine: Callable[[Value, Value], Value]) -> Value:
    """Reduce each of several vectors to 16 / n lanes, in order: by halves, two vectors at a time."""
    width = LANES
    while len(vectors) > 1:
        width //= 2
        starts = [start + lane for start in range(0, 2 * LANES, 2 * width) for lane in range(width)]
        pairs = zip(vectors[::2], vectors[1::2], strict=True)
        vectors = [
            combine(
                shuffled(builder, first, second, starts),
                shuffled(builder, first, second, [lane + width for lane in starts]),
            )
            for first, second in pairs
        ]
    return vectors[0]


def halves(builder: Builder, source: Value, weight: Value | None, inverse: Value) -> list[Value]:
    """The 16 halves of the blocks, normalised if there is a weight."""
    found = [emit.load_floats(builder, source, 64 * half) for half in range(2 * BLOCKS)]
    if weight is None:
        return found
    factor = emit.splat(builder, inverse)
    return [
        builder.fmul(builder.fmul(value, factor), emit.load_floats(builder, weight, 64 * half))
        for half, value in enumerate(found)
    ]


def largest_of(builder: Builder, values: Sequence[Value]) -> Value:
    """The largest magnitude of each block, in both lanes that stand for its halves."""

    def larger(first: Value, second: Value) -> Value:
        return curves.larger(builder, first, second)

    sizes = [emit.call(builder, "llvm.fabs.v16f32", emit.F32S, [value]) for value in values]
    found = reduced(builder, [larger(*pair) for pair in zip(sizes[::2], sizes[1::2], strict=True)], larger)
    return larger(found, shuffled(builder, found, found, SWAPPED))


def codes_of(builder: Builder, values: Sequence[Value], inverse: Value, record: Value, step: Value) -> list[Value]:
    """Write the codes of the blocks; takes int32[16] of each half."""
    found = []
    for half, value in enumerate(values):
        factor = shuffled(builder, inverse, inverse, [half // 2 * 2] * LANES)
        turned = emit.call(builder, "llvm.rint.v16f32", emit.F32S, [builder.fmul(value, factor)])
        found.append(builder.fptosi(turned, emit.I32S))
        address = builder.add(record, builder.mul(step, emit.integer(half // 2)))
        emit.store(builder, builder.trunc(found[-1], CODES), address, half % 2 * LANES)
    return found


def write_facts(builder: Builder, scale: Value, sums: Value, record: Value, step: Value) -> None:
    """Write the numbers after the codes in each record: `scale` and `sums` hold two lanes per block, one per half."""
    total = builder.add(sums, shuffled(builder, sums, sums, SWAPPED))
    of_total = builder.fmul(scale, builder.sitofp(total, emit.F32S))
    scales = shuffled(builder, scale, of_total, [lane + lane % 2 * LANES for lane in range(LANES)])
    less = builder.mul(total, ir.Constant(emit.I32S, [-8, -128] * BLOCKS))
    of_halves = builder.fmul(scale, builder.sitofp(sums, emit.F32S))
    facts = (scales, less, of_halves, builder.neg(sums))
    columns = [builder.bitcast(column, PAIRS) for column in facts]
    for place in range(0, len(columns), 2):
        for odd in (0, 1):
            lanes = [lane + table * BLOCKS for lane in range(odd, BLOCKS, 2) for table in (0, 1)]
            joined = shuffled(builder, columns[place], columns[place + 1], lanes)
            for pair in range(BLOCKS // 2):
                address = builder.add(record, builder.mul(step, emit.integer(2 * pair + odd)))
                part = emit.slice_lanes(builder, joined, [2 * pair, 2 * pair + 1])
                emit.store(builder, part, address, SCALE_AT + 8 * place)


@intrinsic(prefer_literal=True)
def round_blocks(context, weighted, source, weight, inverse, record, step):
    """Write records of BLOCKS blocks; with `weighted` the row is first multiplied by `inverse` and by the weight."""
    is_weighted = bool(weighted.literal_value)

    def generate(context, builder, signature, arguments):
        _, source, weight, inverse, record, step = arguments
        values = halves(builder, source, weight if is_weighted else None, inverse)
        largest = largest_of(builder, values)
        scale = builder.fdiv(largest, curves.constant(127.0))
        inverses = builder.fdiv(curves.constant(127.0), largest)
        is_large = builder.fcmp_ordered(">=", largest, curves.constant(SMALLEST))
        inverses = builder.select(is_large, inverses, curves.constant(0.0))
        integers = codes_of(builder, values, inverses, record, step)
        write_facts(builder, scale, reduced(builder, integers, builder.add), record, step)
        return context.get_dummy_value()

    return types.void(weighted, types.intp, types.intp, types.float32, types.intp, types.intp), generate
