"""Learned position embeddings, added to token embeddings."""

from __future__ import annotations

from dataclasses import dataclass

from edgeinfer.graph.op import Access, Cost, Op, OpContext
from edgeinfer.graph.operands import Weight


@dataclass(frozen=True, slots=True)
class PositionEmbed(Op):
    """out[t] += weight[position of token t]. Its stage begins with the `Embed` that writes `out`."""

    weight: Weight
    out: str

    @property
    def accesses(self) -> tuple[tuple[Access, ...], tuple[Access, ...]]:
        out = (Access(self.out, self.weight.columns),)
        return out, out

    @property
    def matrices(self) -> tuple[Weight, ...]:
        return (self.weight,)

    @property
    def cost(self) -> Cost:
        return Cost(gathered=(self.weight,), n_elements=self.weight.columns)

    def evaluate(self, context: OpContext) -> None:
        rows = context.matrix(self.weight)[context.step.batch.positions]
        context.values[self.out] = context.values[self.out] + rows


OP = PositionEmbed
