"""Parts of input rows that enter after later layers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from edgeinfer.graph.op import Access, Cost, Op, OpContext
from edgeinfer.graph.step import Batch, Floats


@dataclass(frozen=True, slots=True)
class DeepRows(Op):
    """out[t] = columns `first` to `first + width` of the row given in place of token t; -0.0 for an id.

    The first columns of a row stand in place of the embedding; each further part is added after a layer (DeepStack,
    Meng et al., arXiv 2406.04334; Qwen3-VL). Adding -0.0 changes no bit.
    """

    out: str
    width: int
    first: int

    @property
    def accesses(self) -> tuple[tuple[Access, ...], tuple[Access, ...]]:
        return (), (Access(self.out, self.width),)

    @property
    def cost(self) -> Cost:
        return Cost(n_elements=self.width)

    def evaluate(self, context: OpContext) -> None:
        found: Floats = np.empty((len(context.step.batch.tokens), self.width), np.float32)
        self.fill(context.step.batch, found)
        context.values[self.out] = found

    def fill(self, batch: Batch, out: Floats) -> None:
        """Write the values for a batch to float32[T, width]."""
        out[:] = -0.0
        if batch.rows is not None:
            out[batch.tokens < 0] = batch.rows.values[:, self.first : self.first + self.width]


OP = DeepRows
