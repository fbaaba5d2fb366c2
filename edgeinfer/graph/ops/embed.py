"""Embeddings: each token's row, from the token table or supplied by the caller."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from edgeinfer.graph.op import Access, Cost, Op, OpContext
from edgeinfer.graph.operands import Weight


@dataclass(frozen=True, slots=True)
class Embed(Op):
    """out[t] = scale * weight[token t], or the row of numbers given in place of token t, which is not scaled.

    `rows`: whether such rows are allowed (`graph.step`). Further columns of theirs are for `DeepRows`.
    """

    weight: Weight
    out: str
    scale: float = 1.0
    rows: bool = False

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
        batch = context.step.batch
        given = batch.tokens < 0
        embedded = context.matrix(self.weight)[np.where(given, 0, batch.tokens)] * np.float32(self.scale)
        if batch.rows is not None:
            embedded[given] = batch.rows.values[:, : self.weight.columns]
        elif given.any():
            raise ValueError("tokens below zero need rows of numbers")
        context.values[self.out] = embedded


OP = Embed
