"""Rows of a further table that tokens look up, beside their embeddings."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from edgeinfer.graph.op import Access, Cost, Op, OpContext
from edgeinfer.graph.operands import Weight


@dataclass(frozen=True, slots=True)
class TokenRows(Op):
    """out[t] = scale * weight[token t], or of token 0 where a row of numbers is given in place of token t.

    Needed for embeddings per layer (Gemma 3n and 4), whose table holds most of a model's numbers.
    """

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
        tokens = np.maximum(context.step.batch.tokens, 0)
        context.values[self.out] = context.matrix(self.weight)[tokens] * np.float32(self.scale)


OP = TokenRows
