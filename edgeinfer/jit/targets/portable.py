"""Any CPU: products in plain 32-bit integer vectors, which LLVM lowers to whatever the machine has."""

from __future__ import annotations

from collections.abc import Sequence

from llvmlite import ir

from edgeinfer.jit import emit
from edgeinfer.jit.emit import Builder, Value
from edgeinfer.jit.targets import Target


class PortableDot:
    """A dot that adds four widened products a step."""

    def __init__(self, builder: Builder, initial: Value, code_bits: int) -> None:
        self._sum = initial

    def step(self, builder: Builder, weights: Value, activations: Value) -> None:
        """Add 64 products."""
        for byte in range(4):
            lanes = range(byte, 4 * emit.LANES, 4)
            weight = builder.zext(emit.slice_lanes(builder, weights, lanes), emit.I32S)
            activation = builder.sext(emit.slice_lanes(builder, activations, lanes), emit.I32S)
            self._sum = builder.add(self._sum, builder.mul(weight, activation))

    def finish(self, builder: Builder) -> Value:
        """The sums so far."""
        return self._sum


def lookup(builder: Builder, table: Sequence[int], indices: Value) -> Value:
    """Halve the table by one bit of the index after another."""
    entries: list[Value] = [emit.byte_table([entry], emit.BYTES.count) for entry in table]
    for bit in range(4):
        shifted = builder.lshr(indices, emit.repeated(emit.BYTES, bit))
        is_odd = builder.trunc(shifted, ir.VectorType(ir.IntType(1), emit.BYTES.count))
        pairs = zip(entries[1::2], entries[::2], strict=True)
        entries = [builder.select(is_odd, odd, even) for odd, even in pairs]
    return entries[0]


TARGET = Target("portable", 16, 16, PortableDot, lookup, emit.negated, emit.levels)
