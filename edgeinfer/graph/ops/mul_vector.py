"""Every row times a vector."""

from __future__ import annotations

from dataclasses import dataclass

from edgeinfer.graph.op import Access, Cost, Op, OpContext
from edgeinfer.graph.operands import Weight


@dataclass(frozen=True, slots=True)
class MulVector(Op):
    """out[t] *= weight, float32[width]."""

    weight: Weight
    out: str
    width: int

    @property
    def accesses(self) -> tuple[tuple[Access, ...], tuple[Access, ...]]:
        out = (Access(self.out, self.width),)
        return out, out

    @property
    def vectors(self) -> tuple[Weight, ...]:
        return (self.weight,)

    @property
    def cost(self) -> Cost:
        return Cost(vectors=self.vectors, n_elements=self.width)

    def evaluate(self, context: OpContext) -> None:
        context.values[self.out] = context.values[self.out] * context.vector(self.weight)


OP = MulVector
