"""NEON with dot products (most ARM cores since 2018): one sdot for each quarter of a 64-byte vector.

sdot multiplies signed bytes. Codes below 128 are signed already; 8-bit weights have 128 subtracted, and if the caller
expects unsigned weights, it is added back as twice 64 times the activations.
"""

from __future__ import annotations

from collections.abc import Sequence

from llvmlite import ir

from edgeinfer.jit import emit
from edgeinfer.jit.emit import Builder, Value
from edgeinfer.jit.targets import Dot, Target

QUARTER_BYTES = ir.VectorType(emit.I8, 16)
QUARTER_INTS = ir.VectorType(emit.I32, 4)


class SdotDot:
    """A dot whose sum stays in four registers; 8-bit weights are bytes of code + 128."""

    def __init__(self, builder: Builder, initial: Value, code_bits: int, unsigned: bool = True) -> None:
        self._sums = emit.parts(builder, initial, 4)
        self._byte_codes = code_bits == 8
        self._adds_offset = self._byte_codes and unsigned

    def step(self, builder: Builder, weights: Value, activations: Value) -> None:
        """Add 64 products."""
        if self._byte_codes:
            weights = builder.xor(weights, emit.repeated(emit.BYTES, -128))
        self._add(builder, weights, activations)
        if self._adds_offset:
            for _half in range(2):
                self._add(builder, emit.repeated(emit.BYTES, 64), activations)

    def finish(self, builder: Builder) -> Value:
        """The sums so far."""
        low, high = (emit.join(builder, *self._sums[at : at + 2]) for at in (0, 2))
        return emit.join(builder, low, high)

    def _add(self, builder: Builder, weights: Value, activations: Value) -> None:
        operands = zip(self._sums, emit.parts(builder, weights, 4), emit.parts(builder, activations, 4), strict=True)
        self._sums = [emit.call(builder, "llvm.aarch64.neon.sdot.v4i32.v16i8", QUARTER_INTS, each) for each in operands]


def signed_dot(builder: Builder, initial: Value) -> Dot:
    """A dot of signed 8-bit codes, stored with 128 added."""
    return SdotDot(builder, initial, 8, unsigned=False)


def lookup(builder: Builder, table: Sequence[int], indices: Value) -> Value:
    """One tbl for each quarter."""
    constant = emit.byte_table(table, 1)
    quarters = [
        emit.call(builder, "llvm.aarch64.neon.tbl1.v16i8", QUARTER_BYTES, [constant, quarter])
        for quarter in emit.parts(builder, indices, 4)
    ]
    return emit.join(builder, *(emit.join(builder, *quarters[at : at + 2]) for at in (0, 2)))


TARGET = Target("neon", 32, 16, SdotDot, lookup, emit.negated, emit.levels, signed_dot)
