"""The activation of a feed-forward network with a gate."""

from __future__ import annotations

from dataclasses import dataclass

from edgeinfer.graph.activations import ACTIVATIONS, Activation, cut
from edgeinfer.graph.op import Access, Cost, Op, OpContext


@dataclass(frozen=True, slots=True)
class GatedAct(Op):
    """out = activation(gate) * up. With a `threshold`, activated gates below it in magnitude, and NaN, count as zero.

    The threshold is compared as float32; 0 leaves all values unchanged.
    """

    gate: str
    up: str
    out: str
    width: int
    activation: Activation
    threshold: float = 0.0

    @property
    def accesses(self) -> tuple[tuple[Access, ...], tuple[Access, ...]]:
        return (Access(self.gate, self.width), Access(self.up, self.width)), (Access(self.out, self.width),)

    @property
    def cost(self) -> Cost:
        return Cost(n_elements=self.width)

    def evaluate(self, context: OpContext) -> None:
        gates = cut(ACTIVATIONS[self.activation](context.values[self.gate]), self.threshold)
        context.values[self.out] = gates * context.values[self.up]


OP = GatedAct
