"""LLVM IR building blocks: vector types, loads, stores, broadcasts, loops.

Everything is written for LANES = 16 lanes of 32 bits; LLVM splits a vector if the CPU's registers are narrower, so one
source gives the same bits everywhere. Knows nothing of Numba's typing (see `simd`) or of kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from llvmlite import ir

LANES = 16
MIDDLE = 7.5
"""The middle of codes of four bits that stand for as many numbers below zero as above."""

I8, I16, I32, I64 = ir.IntType(8), ir.IntType(16), ir.IntType(32), ir.IntType(64)
F16, F32, VOID = ir.HalfType(), ir.FloatType(), ir.VoidType()
F32S = ir.VectorType(F32, LANES)
I32S = ir.VectorType(I32, LANES)
F16S = ir.VectorType(F16, LANES)
I16S = ir.VectorType(I16, LANES)
BYTES = ir.VectorType(I8, 4 * LANES)

Builder: TypeAlias = ir.IRBuilder
Value: TypeAlias = ir.Value


def integer(value: int) -> ir.Constant:
    """A 64-bit integer constant."""
    return ir.Constant(I64, value)


def repeated(kind: ir.VectorType, value: float) -> ir.Constant:
    """A vector constant with the same value in all lanes."""
    return ir.Constant(kind, [value] * kind.count)


def byte_table(table: Sequence[int], copies: int) -> ir.Constant:
    """A constant of small numbers (-128..255) as bytes, `copies` times."""
    signed = [(entry + 128) % 256 - 128 for entry in table]
    return ir.Constant(ir.VectorType(I8, len(signed) * copies), signed * copies)


def hidden(builder: Builder, value: Value) -> Value:
    """A 64-bit integer in a register, of which LLVM does not know where it came from.

    A loop of a hidden number of rounds stays a loop, and parts of a hidden number are not looked for elsewhere.
    """
    found: Value = builder.call(ir.InlineAsm(ir.FunctionType(I64, [I64]), "", "=r,0"), [value])
    return found


def splat(builder: Builder, value: Value, count: int = LANES) -> Value:
    """A scalar in all lanes."""
    kind = ir.VectorType(value.type, count)
    undefined = ir.Constant(kind, ir.Undefined)
    single = builder.insert_element(undefined, value, ir.Constant(I32, 0))
    return builder.shuffle_vector(single, undefined, ir.Constant(ir.VectorType(I32, count), [0] * count))


def pointer(builder: Builder, address: Value, kind: ir.Type, offset: int = 0) -> Value:
    """An address plus `offset` bytes, as a pointer to `kind`."""
    if offset:
        address = builder.add(address, integer(offset))
    return builder.inttoptr(address, kind.as_pointer())


def load(builder: Builder, address: Value, kind: ir.Type, offset: int = 0, align: int = 1) -> Value:
    """A value of `kind` at address + offset bytes."""
    value = builder.load(pointer(builder, address, kind, offset))
    value.align = align
    return value


def store(builder: Builder, value: Value, address: Value, offset: int = 0, align: int = 1) -> None:
    """Write a value to address + offset bytes."""
    builder.store(value, pointer(builder, address, value.type, offset)).align = align


def load_halves(builder: Builder, address: Value, offset: int = 0) -> Value:
    """16 float16 as float32."""
    return builder.fpext(load(builder, address, F16S, offset, 2), F32S)


def load_bfloats(builder: Builder, address: Value, offset: int = 0) -> Value:
    """16 bfloat16 as float32."""
    wide = builder.zext(load(builder, address, I16S, offset, 2), I32S)
    return builder.bitcast(builder.shl(wide, repeated(I32S, 16)), F32S)


def load_floats(builder: Builder, address: Value, offset: int = 0) -> Value:
    """16 float32."""
    return load(builder, address, F32S, offset, 4)


def broadcast_float(builder: Builder, address: Value, offset: int = 0) -> Value:
    """One float32 in all lanes."""
    return splat(builder, load(builder, address, F32, offset, 4))


def broadcast_bytes(builder: Builder, address: Value, offset: int = 0) -> Value:
    """Four bytes, repeated in every 32-bit lane, as 64 bytes."""
    return builder.bitcast(splat(builder, load(builder, address, I32, offset, 4)), BYTES)


def levels(builder: Builder, codes: Value, half: int) -> Value:
    """code - MIDDLE for the low (`half` 0) or the high four bits of int32[16] below 256, as float32."""
    nibbles = builder.lshr(codes, repeated(I32S, 4)) if half else builder.and_(codes, repeated(I32S, 15))
    return builder.fsub(builder.sitofp(nibbles, F32S), repeated(F32S, MIDDLE))


def slice_lanes(builder: Builder, vector: Value, lanes: Sequence[int]) -> Value:
    """The named lanes of a vector as a shorter vector."""
    undefined = ir.Constant(vector.type, ir.Undefined)
    return builder.shuffle_vector(vector, undefined, ir.Constant(ir.VectorType(I32, len(lanes)), list(lanes)))


def parts(builder: Builder, vector: Value, count: int) -> list[Value]:
    """A vector cut into `count` equal parts, in order."""
    size = vector.type.count // count
    return [slice_lanes(builder, vector, range(at, at + size)) for at in range(0, count * size, size)]


def join(builder: Builder, low: Value, high: Value) -> Value:
    """Two vectors concatenated."""
    count = 2 * low.type.count
    return builder.shuffle_vector(low, high, ir.Constant(ir.VectorType(I32, count), list(range(count))))


def call(builder: Builder, name: str, result: ir.Type, arguments: Sequence[Value]) -> Value:
    """Call an LLVM intrinsic or C function by name."""
    kind = ir.FunctionType(result, [argument.type for argument in arguments])
    function = builder.module.globals.get(name) or ir.Function(builder.module, kind, name)
    return builder.call(function, list(arguments))


def prefetch(builder: Builder, address: Value, offset: int = 0, nearness: int = 3) -> None:
    """Prefetch the cache line at address + offset bytes; any address will do. `nearness`: 3 first cache, 2 second."""
    line = pointer(builder, address, I8, offset)
    to_read, near, data = (ir.Constant(I32, number) for number in (0, nearness, 1))
    call(builder, "llvm.prefetch.p0", VOID, [line, to_read, near, data])


def fma(builder: Builder, x: Value, y: Value, z: Value) -> Value:
    """x * y + z with one rounding, 16 lanes."""
    return call(builder, "llvm.fma.v16f32", F32S, [x, y, z])


def negated(builder: Builder, values: Value, signs: Value) -> Value:
    """64 bytes, those with a negative byte in `signs` negated."""
    is_negative = builder.icmp_signed("<", signs, repeated(BYTES, 0))
    return builder.select(is_negative, builder.neg(values), values)


def absolute_bytes(builder: Builder, vector: Value) -> Value:
    """|byte| of 64 signed bytes; the result for -128 is 128, as an unsigned byte."""
    never_poison = ir.Constant(ir.IntType(1), 0)
    return call(builder, f"llvm.abs.v{vector.type.count}i8", vector.type, [vector, never_poison])


def halve(builder: Builder, vector: Value, combine: Callable[[Value, Value], Value]) -> Value:
    """Reduce a vector to a scalar by combining its halves repeatedly: a fixed tree."""
    count = vector.type.count
    while count > 1:
        count //= 2
        low = slice_lanes(builder, vector, range(count))
        high = slice_lanes(builder, vector, range(count, 2 * count))
        vector = combine(low, high)
    return builder.extract_element(vector, ir.Constant(I32, 0))


def loop(
    builder: Builder, count: Value, carried: Sequence[Value], body: Callable[[Value, list[Value]], Sequence[Value]]
) -> list[Value]:
    """for index in range(count): carried = body(index, carried). Returns the carried values after the last round."""
    before = builder.block
    head, inner, after = (builder.append_basic_block(name) for name in ("head", "body", "after"))
    builder.branch(head)
    builder.position_at_end(head)
    index = builder.phi(I64)
    index.add_incoming(integer(0), before)
    phis = []
    for value in carried:
        phi = builder.phi(value.type)
        phi.add_incoming(value, before)
        phis.append(phi)
    builder.cbranch(builder.icmp_signed("<", index, count), inner, after)
    builder.position_at_end(inner)
    results = body(index, list(phis))
    index.add_incoming(builder.add(index, integer(1)), builder.block)
    for phi, result in zip(phis, results, strict=True):
        phi.add_incoming(result, builder.block)
    builder.branch(head)
    builder.position_at_end(after)
    return phis
