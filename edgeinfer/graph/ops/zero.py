"""A zeroed buffer: the start of a sum for ops that only add."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from edgeinfer.graph.op import Access, Cost, Op, OpContext


@dataclass(frozen=True, slots=True)
class Zero(Op):
    """value[t] = 0 for each token of the pass."""

    value: str
    width: int

    @property
    def accesses(self) -> tuple[tuple[Access, ...], tuple[Access, ...]]:
        return (), (Access(self.value, self.width),)

    @property
    def cost(self) -> Cost:
        return Cost(n_elements=self.width)

    def evaluate(self, context: OpContext) -> None:
        context.values[self.value] = np.zeros((len(context.step.batch.tokens), self.width), np.float32)


OP = Zero
