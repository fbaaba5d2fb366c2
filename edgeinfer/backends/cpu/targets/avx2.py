"""AVX2: vpmaddubsw and vpmaddwd on the two halves of a 64-byte vector.

vpmaddubsw saturates at 16 bits. 4-bit weights never reach it (8 steps x 2 x 15 x 127 = 30,480), so their sums stay in
16 bits for a whole block; 8-bit weights are made signed (less 128) and multiplied as |weight| x (activation with the
weight's sign), at most 2 x 128 x 127 = 32,512 a step, and the 128 is put back through the sum of the activations.
"""

from __future__ import annotations

from llvmlite import ir

from edgeinfer.backends.cpu import emit
from edgeinfer.backends.cpu.emit import Builder, Value
from edgeinfer.backends.cpu.targets import Target

HALF_BYTES = ir.VectorType(emit.I8, 32)
HALF_SHORTS = ir.VectorType(emit.I16, 16)
HALF_INTS = ir.VectorType(emit.I32, 8)


def halves(builder: Builder, vector: Value) -> tuple[Value, Value]:
    """The low and high 32 bytes of 64."""
    return emit.slice_lanes(builder, vector, range(32)), emit.slice_lanes(builder, vector, range(32, 64))


def pair_sums(builder: Builder, unsigned: Value, signed: Value) -> Value:
    """int16[16]: sums of two neighbouring products."""
    return emit.call(builder, "llvm.x86.avx2.pmadd.ub.sw", HALF_SHORTS, [unsigned, signed])


def widen(builder: Builder, shorts: Value) -> Value:
    """int32[8]: sums of two neighbouring int16."""
    return emit.call(builder, "llvm.x86.avx2.pmadd.wd", HALF_INTS, [shorts, emit.repeated(HALF_SHORTS, 1)])


class NibbleDot:
    """Weights 0..15: at most 8 steps before `finish`."""

    def __init__(self, initial: Value) -> None:
        self._initial = initial
        self._sums: list[Value] = []

    def step(self, builder: Builder, weights: Value, activations: Value) -> None:
        """Add 64 products in 16 bits."""
        parts = zip(halves(builder, weights), halves(builder, activations), strict=True)
        sums = [pair_sums(builder, *part) for part in parts]
        self._sums = [builder.add(*pair) for pair in zip(self._sums, sums, strict=True)] if self._sums else sums

    def finish(self, builder: Builder) -> Value:
        """The sums so far, widened."""
        low, high = (widen(builder, part) for part in self._sums)
        return builder.add(emit.join(builder, low, high), self._initial)


class ByteDot:
    """Weights 0..255."""

    def __init__(self, initial: Value) -> None:
        self._sum = initial

    def step(self, builder: Builder, weights: Value, activations: Value) -> None:
        """Add 64 products: (weight - 128) x activation, and 128 x activation."""
        sums = []
        for weight, activation in zip(halves(builder, weights), halves(builder, activations), strict=True):
            signed = builder.xor(weight, emit.repeated(HALF_BYTES, -128))
            negative = builder.icmp_signed("<", signed, emit.repeated(HALF_BYTES, 0))
            size = builder.select(negative, builder.neg(signed), signed)
            turned = emit.call(builder, "llvm.x86.avx2.psign.b", HALF_BYTES, [activation, signed])
            offset = pair_sums(builder, emit.repeated(HALF_BYTES, -128), activation)
            sums.append(builder.add(widen(builder, pair_sums(builder, size, turned)), widen(builder, offset)))
        self._sum = builder.add(self._sum, emit.join(builder, *sums))

    def finish(self, builder: Builder) -> Value:
        """The sums so far."""
        return self._sum


def dot(builder: Builder, initial: Value, code_bits: int) -> NibbleDot | ByteDot:
    """A dot for the width of the weights."""
    return NibbleDot(initial) if code_bits == 4 else ByteDot(initial)


TARGET = Target("avx2", ("avx2", "fma", "f16c"), dot)
