"""Scaled values: muP's logits and branches (Yang et al., arXiv 2203.03466), layers with a factor in the file."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from edgeinfer.graph.op import Access, Cost, Op, OpContext
from edgeinfer.graph.operands import Weight


@dataclass(frozen=True, slots=True)
class Scale(Op):
    """value = factor * value, in place. `weight`: a further factor, a single number of the file."""

    value: str
    width: int
    factor: float
    weight: Weight | None = None

    @property
    def accesses(self) -> tuple[tuple[Access, ...], tuple[Access, ...]]:
        value = (Access(self.value, self.width),)
        return value, value

    @property
    def vectors(self) -> tuple[Weight, ...]:
        return () if self.weight is None else (self.weight,)

    @property
    def cost(self) -> Cost:
        return Cost(vectors=self.vectors, n_elements=self.width)

    def evaluate(self, context: OpContext) -> None:
        scaled = context.values[self.value] * np.float32(self.factor)
        context.values[self.value] = scaled if self.weight is None else scaled * context.vector(self.weight)


OP = Scale
