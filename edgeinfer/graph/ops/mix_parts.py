"""Equal parts of rows, each with factors of all of them added (AltUp, arXiv 2301.13310)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from edgeinfer.graph.op import Access, Cost, Op, OpContext


@dataclass(frozen=True, slots=True)
class MixParts(Op):
    """out's part i = source's part i + the sum over j of factors[i * parts + j] * source's part j.

    `source` and `out` are two buffers, each of `parts` parts of `width` columns.
    """

    source: str
    factors: str
    out: str
    parts: int
    width: int

    @property
    def accesses(self) -> tuple[tuple[Access, ...], tuple[Access, ...]]:
        wide = self.parts * self.width
        return (Access(self.source, wide), Access(self.factors, self.parts**2)), (Access(self.out, wide),)

    @property
    def cost(self) -> Cost:
        return Cost(n_elements=self.parts**2 * self.width)

    def evaluate(self, context: OpContext) -> None:
        rows = context.values[self.source]
        parts = rows.reshape(len(rows), self.parts, self.width)
        factors = context.values[self.factors].reshape(len(rows), self.parts, self.parts)
        context.values[self.out] = (parts + np.matmul(factors, parts)).reshape(rows.shape)


OP = MixParts
