"""AVX2: vpmaddubsw and vpmaddwd on the two halves of a 64-byte vector.

vpmaddubsw adds two products and saturates at 16 bits. Products with codes of up to 6 bits are summed in 16 bits for as
many steps as their largest product allows (`narrow_steps`), then widened. 8-bit weights are made signed (less 128) and
multiplied as |weight| x (activation with the weight's sign), at most 2 x 128 x 127 = 32,512 a step; if the caller
expects unsigned weights, the 128 is added back through the sum of the activations.
"""

from __future__ import annotations

from collections.abc import Sequence

from llvmlite import ir

from edgeinfer.jit import emit
from edgeinfer.jit.emit import Builder, Value
from edgeinfer.jit.targets import MOST_STEPS, Dot, Target

HALF_BYTES = ir.VectorType(emit.I8, 32)
HALF_SHORTS = ir.VectorType(emit.I16, 16)
HALF_INTS = ir.VectorType(emit.I32, 8)


def narrow_steps(code_bits: int) -> int:
    """Steps whose sums fit in 16 bits: each adds two products of the largest code and 127."""
    return min(MOST_STEPS, 32_767 // (2 * (2**code_bits - 1) * 127))


def pair_sums(builder: Builder, unsigned: Value, signed: Value) -> Value:
    """int16[16]: sums of two neighbouring products."""
    return emit.call(builder, "llvm.x86.avx2.pmadd.ub.sw", HALF_SHORTS, [unsigned, signed])


def widen(builder: Builder, shorts: Value) -> Value:
    """int32[8]: sums of two neighbouring int16."""
    return emit.call(builder, "llvm.x86.avx2.pmadd.wd", HALF_INTS, [shorts, emit.repeated(HALF_SHORTS, 1)])


class NarrowDot:
    """A dot of codes of up to 6 bits."""

    def __init__(self, initial: Value, code_bits: int) -> None:
        self._sum = initial
        self._most_narrow = narrow_steps(code_bits)
        self._n_narrow = 0
        self._narrow: list[Value] = []

    def step(self, builder: Builder, weights: Value, activations: Value) -> None:
        """Add 64 products in 16 bits."""
        if self._n_narrow == self._most_narrow:
            self._empty(builder)
        parts = zip(emit.parts(builder, weights, 2), emit.parts(builder, activations, 2), strict=True)
        sums = [pair_sums(builder, *part) for part in parts]
        self._narrow = [builder.add(*pair) for pair in zip(self._narrow, sums, strict=True)] if self._narrow else sums
        self._n_narrow += 1

    def finish(self, builder: Builder) -> Value:
        """The sums so far, widened."""
        self._empty(builder)
        return self._sum

    def _empty(self, builder: Builder) -> None:
        if self._narrow:
            wide = emit.join(builder, *(widen(builder, part) for part in self._narrow))
            self._sum = builder.add(self._sum, wide)
        self._n_narrow, self._narrow = 0, []


class ByteDot:
    """A dot of weight bytes of code + 128, multiplied as codes, or as bytes if `unsigned`."""

    def __init__(self, initial: Value, unsigned: bool) -> None:
        self._sum = initial
        self._unsigned = unsigned

    def step(self, builder: Builder, weights: Value, activations: Value) -> None:
        """Add 64 products: code x activation, plus 128 x activation if `unsigned`."""
        sums = []
        signed_weights = builder.xor(weights, emit.repeated(emit.BYTES, -128))
        sizes = emit.absolute_bytes(builder, signed_weights)
        vectors = (emit.parts(builder, vector, 2) for vector in (signed_weights, sizes, activations))
        for signed, size, activation in zip(*vectors, strict=True):
            turned = emit.call(builder, "llvm.x86.avx2.psign.b", HALF_BYTES, [activation, signed])
            total = widen(builder, pair_sums(builder, size, turned))
            if self._unsigned:
                offset = pair_sums(builder, emit.repeated(HALF_BYTES, -128), activation)
                total = builder.add(total, widen(builder, offset))
            sums.append(total)
        self._sum = builder.add(self._sum, emit.join(builder, *sums))

    def finish(self, builder: Builder) -> Value:
        """The sums so far."""
        return self._sum


def dot(builder: Builder, initial: Value, code_bits: int) -> Dot:
    """A dot for the width of the codes."""
    return ByteDot(initial, unsigned=True) if code_bits == 8 else NarrowDot(initial, code_bits)


def signed_dot(builder: Builder, initial: Value) -> Dot:
    """A dot of signed 8-bit codes, stored with 128 added."""
    return ByteDot(initial, unsigned=False)


def lookup(builder: Builder, table: Sequence[int], indices: Value) -> Value:
    """One vpshufb for each half."""
    repeated = emit.byte_table(table, 2)
    halves = [
        emit.call(builder, "llvm.x86.avx2.pshuf.b", HALF_BYTES, [repeated, half])
        for half in emit.parts(builder, indices, 2)
    ]
    return emit.join(builder, *halves)


def negated(builder: Builder, values: Value, signs: Value) -> Value:
    """One vpsignb for each half, which would make a byte zero whose sign is zero."""
    odd = builder.or_(signs, emit.repeated(emit.BYTES, 1))
    halves = zip(emit.parts(builder, values, 2), emit.parts(builder, odd, 2), strict=True)
    return emit.join(builder, *(emit.call(builder, "llvm.x86.avx2.psign.b", HALF_BYTES, half) for half in halves))


TARGET = Target("avx2", 16, 32, dot, lookup, negated, emit.levels, signed_dot)
