"""Embeddings: the row of each token."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from edgeinfer.graph.cost import Cost
from edgeinfer.graph.op import Access, Op, OpContext
from edgeinfer.graph.weights import Weight


@dataclass(frozen=True, slots=True)
class Embed(Op):
    """out[t] = scale * weight[token t]."""

    weight: Weight
    out: str
    scale: float = 1.0

    @property
    def accesses(self) -> tuple[tuple[Access, ...], tuple[Access, ...]]:
        return (), (Access(self.out, self.weight.columns),)

    @property
    def matrices(self) -> tuple[Weight, ...]:
        return (self.weight,)

    @property
    def cost(self) -> Cost:
        return Cost(gathered=(self.weight,), n_elements=self.weight.columns)

    def evaluate(self, context: OpContext) -> None:
        rows = context.matrix(self.weight)[context.step.batch.tokens]
        context.values[self.out] = rows * np.float32(self.scale)


OP = Embed
