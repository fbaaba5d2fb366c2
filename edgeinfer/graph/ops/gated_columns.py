"""Some columns of a buffer times an activated gate."""

from __future__ import annotations

from dataclasses import dataclass

from edgeinfer.graph.activations import ACTIVATIONS, Activation
from edgeinfer.graph.op import Access, Cost, Op, OpContext


@dataclass(frozen=True, slots=True)
class GatedColumns(Op):
    """out = activation(gate) * the `width` columns of `source` from `first` on; `source` has `source_width`."""

    gate: str
    source: str
    out: str
    first: int
    width: int
    source_width: int
    activation: Activation

    @property
    def accesses(self) -> tuple[tuple[Access, ...], tuple[Access, ...]]:
        gate, source = Access(self.gate, self.width), Access(self.source, self.source_width)
        return (gate, source), (Access(self.out, self.width),)

    @property
    def cost(self) -> Cost:
        return Cost(n_elements=self.width)

    def evaluate(self, context: OpContext) -> None:
        columns = context.values[self.source][:, self.first : self.first + self.width]
        context.values[self.out] = ACTIVATIONS[self.activation](context.values[self.gate]) * columns


OP = GatedColumns
