"""Products in tile registers (AMX) of numbers that are taken as sums of two bfloat16, high and low.

A float16 is such a sum exactly, a float32 within 2^-17 of its size. Products of two low parts are left out, so a
product is within 2^-15 of that of float32. Memory: `layout.bfloats`. A sum is one chain over blocks, whatever is beside
it. Infinite numbers become NaN.
"""

from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from edgeinfer.backends.cpu.layout.bfloats import BLOCK_BYTES, COLUMNS, ROWS, TILE_BYTES
from edgeinfer.jit import emit, simd
from edgeinfer.jit.compiler import inline

SUMS, ACTIVATIONS, WEIGHTS = 0, 4, 6
"""First tile registers of the sums of two tiles by two, of the activations, of the weights."""
HIGH, HALF = emit.repeated(emit.I32S, 0xFFFF0000), emit.repeated(emit.I32S, 0x8000)
LOADS = {"f16": emit.load_halves, "bf16": emit.load_bfloats, "f32": emit.load_floats}
SHORTS = ir.VectorType(emit.I16, 2 * emit.LANES)


@simd.operation(types.void)
def shape_tiles(builder):
    """Load the shapes of the tiles into the processor: all eight hold 16 rows of 64 bytes."""
    shape = [1] + [0] * 15 + [64, 0] * 8 + [0] * 16 + [ROWS] * 8 + [0] * 8
    memory = builder.alloca(emit.BYTES)
    builder.store(ir.Constant(emit.BYTES, shape), memory)
    emit.call(builder, "llvm.x86.ldtilecfg", emit.VOID, [builder.bitcast(memory, emit.I8.as_pointer())])


@simd.operation(types.void)
def release_tiles(builder):
    """Release the tile registers, so that their contents need not be saved any more."""
    emit.call(builder, "llvm.x86.tilerelease", emit.VOID, [])


def call_tile(builder, name, *arguments):
    """Call an instruction on tile registers, which are given by their numbers."""
    values = [ir.Constant(emit.I8, each) if isinstance(each, int) else each for each in arguments]
    emit.call(builder, f"llvm.x86.{name}", emit.VOID, values)


def load_or_store(builder, name, register, address, offset):
    """Load a tile register from TILE_BYTES, or write it there."""
    call_tile(builder, name, register, emit.pointer(builder, address, emit.I8, offset), emit.integer(64))


def bits(builder, value):
    """float32[16] as int32[16]."""
    return builder.bitcast(value, emit.I32S)


def pairs(builder, even, odd):
    """The high halves of two int32[16], interleaved: those of `even` first."""
    return builder.or_(builder.lshr(even, emit.repeated(emit.I32S, 16)), builder.and_(odd, HIGH))


def halves(builder, value, element):
    """float32[16] as two int32[16] whose high halves are the high and the low part; what is in the others is nothing.

    The high part of a float16 may as well be cut as rounded: both leave a low part that is a bfloat16.
    """
    whole = bits(builder, value)
    if element == "bf16":
        return whole, None
    high = builder.and_(builder.add(whole, HALF) if element == "f32" else whole, HIGH)
    rest = bits(builder, builder.fsub(value, builder.bitcast(high, emit.F32S)))
    return high, builder.add(rest, HALF) if element == "f32" else rest


@intrinsic(prefer_literal=True)
def split_pair(context, element, source, stride, to):
    """Write the parts of a pair of columns to its row of a block; a column is 16 numbers, `stride` bytes after another.

    A bfloat16 has no low part: nothing is written to that tile.
    """
    name = element.literal_value

    def generate(context, builder, signature, values):
        _, source, stride, to = values
        columns = (LOADS[name](builder, at) for at in (source, builder.add(source, stride)))
        highs, lows = zip(*(halves(builder, column, name) for column in columns), strict=True)
        emit.store(builder, pairs(builder, *highs), to, 0, 64)
        if name != "bf16":
            emit.store(builder, pairs(builder, *lows), to, TILE_BYTES, 64)
        return context.get_dummy_value()

    return types.void(element, *[types.intp] * 3), generate


def write_numbers(builder, values, to):
    """Write the parts of 32 columns of a row, two float32[16], to its place in a block."""
    odd = ir.Constant(ir.VectorType(emit.I32, 2 * emit.LANES), [2 * lane + 1 for lane in range(2 * emit.LANES)])
    parts = zip(*(halves(builder, value, "f32") for value in values), strict=True)
    for of_both, at in zip(parts, (0, TILE_BYTES), strict=True):
        first, second = (builder.bitcast(part, SHORTS) for part in of_both)
        emit.store(builder, builder.shuffle_vector(first, second, odd), to, at, 64)


@simd.operation(types.void, simd.FLOATS, simd.FLOATS, types.intp)
def split_numbers(builder, first, second, to):
    """Write the parts of 32 columns of a row to its place in a block."""
    write_numbers(builder, (first, second), to)


@simd.operation(types.void, types.intp, types.intp, types.intp)
def split_row(builder, source, n_blocks, to):
    """Write the parts of a row of float32 to its place in each block, the first at `to`."""

    def block(index, nothing):
        at, out = (
            builder.add(start, builder.mul(index, emit.integer(size)))
            for start, size in ((source, 4 * COLUMNS), (to, BLOCK_BYTES))
        )
        write_numbers(builder, [emit.load_floats(builder, at, 64 * half) for half in range(2)], out)
        return []

    emit.loop(builder, n_blocks, [], block)


@inline
def zero_row(n_blocks, to):
    """Write zeros in place of a row."""
    zero = simd.splat(np.float32(0.0))
    for at in range(to, to + n_blocks * BLOCK_BYTES, TILE_BYTES):
        simd.store(at, zero)


@inline
def zero_pairs(first, stop, to):
    """Write zeros in place of the pairs `first` to `stop` - 1 of a run of blocks."""
    zero = simd.splat(np.float32(0.0))
    for pair in range(first, stop):
        at = to + pair // ROWS * BLOCK_BYTES + pair % ROWS * 64
        simd.store(at, zero)
        simd.store(at + TILE_BYTES, zero)


@simd.operation(types.void)
def zero_sums(builder):
    """Start four tiles of sums."""
    for place in range(4):
        call_tile(builder, "tilezero", SUMS + place)


@simd.operation(types.void, types.intp)
def store_sums(builder, to):
    """Write the four tiles of sums: those of the first tile of activations first."""
    for place in range(4):
        load_or_store(builder, "tilestored64", SUMS + place, to, place * TILE_BYTES)


@intrinsic(prefer_literal=True)
def multiply(context, element, activations, apart, weights, beside):
    """Add to the four tiles of sums the products of a block: of two tiles of activations and two of weights.

    The second ones are `apart` and `beside` bytes away.
    """
    has_low = element.literal_value != "bf16"

    def generate(context, builder, signature, values):
        _, activations, apart, weights, beside = values
        rows = activations, builder.add(activations, apart)
        columns = weights, builder.add(weights, beside)

        def load(register, addresses, offset):
            for number, address in enumerate(addresses):
                load_or_store(builder, "tileloadd64", register + number, address, offset)

        def add():
            for place in range(4):
                registers = (SUMS + place, ACTIVATIONS + place // 2, WEIGHTS + place % 2)
                call_tile(builder, "tdpbf16ps", *registers)

        load(WEIGHTS, columns, 0)
        load(ACTIVATIONS, rows, TILE_BYTES)
        add()
        load(ACTIVATIONS, rows, 0)
        add()
        if has_low:
            load(WEIGHTS, columns, TILE_BYTES)
            add()
        return context.get_dummy_value()

    return types.void(element, *[types.intp] * 4), generate
