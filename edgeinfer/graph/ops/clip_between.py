"""Values clipped between two numbers of the file (products of Gemma 4's image encoder)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from edgeinfer.graph.op import Access, Cost, Op, OpContext
from edgeinfer.graph.operands import Weight


@dataclass(frozen=True, slots=True)
class ClipBetween(Op):
    """out = the nearest number to source from `least` to `most`, which are single numbers of the file."""

    source: str
    out: str
    width: int
    least: Weight
    most: Weight

    @property
    def accesses(self) -> tuple[tuple[Access, ...], tuple[Access, ...]]:
        return (Access(self.source, self.width),), (Access(self.out, self.width),)

    @property
    def vectors(self) -> tuple[Weight, ...]:
        return self.least, self.most

    @property
    def cost(self) -> Cost:
        return Cost(vectors=self.vectors, n_elements=self.width)

    def evaluate(self, context: OpContext) -> None:
        least, most = context.vector(self.least), context.vector(self.most)
        context.values[self.out] = np.clip(context.values[self.source], least, most)


OP = ClipBetween
