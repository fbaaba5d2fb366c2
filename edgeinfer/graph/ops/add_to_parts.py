"""A row added to equal parts of a wider one."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from edgeinfer.graph.op import Access, Cost, Op, OpContext


@dataclass(frozen=True, slots=True)
class AddToParts(Op):
    """out's part i += source, for all of its `parts` parts of `width` columns from the part `first` on.

    `factors`: a buffer with a factor for each part, all parts counted; part i += (1 + factors[i]) * source.
    """

    source: str
    out: str
    parts: int
    width: int
    first: int = 0
    factors: str | None = None

    @property
    def accesses(self) -> tuple[tuple[Access, ...], tuple[Access, ...]]:
        source, out = Access(self.source, self.width), Access(self.out, self.parts * self.width)
        factors = () if self.factors is None else (Access(self.factors, self.parts),)
        return (source, out, *factors), (out,)

    @property
    def cost(self) -> Cost:
        return Cost(n_elements=(self.parts - self.first) * self.width)

    def evaluate(self, context: OpContext) -> None:
        source, out = context.values[self.source], context.values[self.out]
        parts = out.reshape(len(out), self.parts, self.width).copy()
        if self.factors is None:
            shares = np.ones((len(out), self.parts), np.float32)
        else:
            shares = np.float32(1.0) + context.values[self.factors]
        parts[:, self.first :] += shares[:, self.first :, None] * source[:, None]
        context.values[self.out] = parts.reshape(out.shape)


OP = AddToParts
