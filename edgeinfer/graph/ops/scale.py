"""Scaled values, such as muP's logits and branches (Yang et al., arXiv 2203.03466)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from edgeinfer.graph.op import Access, Cost, Op, OpContext


@dataclass(frozen=True, slots=True)
class Scale(Op):
    """value = factor * value, in place."""

    value: str
    width: int
    factor: float

    @property
    def accesses(self) -> tuple[tuple[Access, ...], tuple[Access, ...]]:
        value = (Access(self.value, self.width),)
        return value, value

    @property
    def cost(self) -> Cost:
        return Cost(n_elements=self.width)

    def evaluate(self, context: OpContext) -> None:
        context.values[self.value] = context.values[self.value] * np.float32(self.factor)


OP = Scale
