"""Any CPU: products in plain 32-bit integer vectors, which LLVM lowers to whatever the machine has."""

from __future__ import annotations

from edgeinfer.backends.cpu import emit
from edgeinfer.backends.cpu.emit import Builder, Value
from edgeinfer.backends.cpu.targets import Target


class PortableDot:
    """Four widened products a step."""

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


TARGET = Target("portable", (), PortableDot)
