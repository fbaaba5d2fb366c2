"""The activation of a feed-forward network without a gate."""

from __future__ import annotations

from dataclasses import dataclass

from edgeinfer.graph.activations import ACTIVATIONS, Activation, cut
from edgeinfer.graph.op import Access, Cost, Op, OpContext


@dataclass(frozen=True, slots=True)
class Act(Op):
    """out = activation(source), for a feed-forward network without a gate. `threshold` is as in `GatedAct`."""

    source: str
    out: str
    width: int
    activation: Activation
    threshold: float = 0.0

    @property
    def accesses(self) -> tuple[tuple[Access, ...], tuple[Access, ...]]:
        return (Access(self.source, self.width),), (Access(self.out, self.width),)

    @property
    def cost(self) -> Cost:
        return Cost(n_elements=self.width)

    def evaluate(self, context: OpContext) -> None:
        context.values[self.out] = cut(ACTIVATIONS[self.activation](context.values[self.source]), self.threshold)


OP = Act
