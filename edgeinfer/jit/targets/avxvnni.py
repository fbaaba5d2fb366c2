"""AVX-VNNI, the 256-bit form of processors without AVX-512: a vpdpbusd for each half of a 64-byte vector."""

from __future__ import annotations

from llvmlite import ir

from edgeinfer.jit import emit
from edgeinfer.jit.emit import Builder, Value
from edgeinfer.jit.targets import Target, avx2
from edgeinfer.jit.targets.avx512vnni import LLVM_TAKES_BYTES

HALF_INTS = ir.VectorType(emit.I32, 8)


class HalvesDot:
    """A dot whose sum stays in two registers."""

    def __init__(self, builder: Builder, initial: Value, code_bits: int) -> None:
        self._sums = emit.parts(builder, initial, 2)

    def step(self, builder: Builder, weights: Value, activations: Value) -> None:
        """Add 64 products."""
        if not LLVM_TAKES_BYTES:
            weights, activations = (builder.bitcast(each, emit.I32S) for each in (weights, activations))
        operands = zip(self._sums, emit.parts(builder, weights, 2), emit.parts(builder, activations, 2), strict=True)
        self._sums = [emit.call(builder, "llvm.x86.avx512.vpdpbusd.256", HALF_INTS, each) for each in operands]

    def finish(self, builder: Builder) -> Value:
        """The sums so far."""
        return emit.join(builder, *self._sums)


TARGET = Target("avxvnni", 16, 32, HalvesDot, avx2.lookup, avx2.negated, emit.levels)
