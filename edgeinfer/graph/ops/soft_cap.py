"""Soft-capped values, such as logits (Gemma Team, arXiv 2408.00118)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from edgeinfer.graph.op import Access, Cost, Op, OpContext


@dataclass(frozen=True, slots=True)
class SoftCap(Op):
    """value = cap * tanh(value / cap), in place."""

    value: str
    width: int
    cap: float

    @property
    def accesses(self) -> tuple[tuple[Access, ...], tuple[Access, ...]]:
        value = (Access(self.value, self.width),)
        return value, value

    @property
    def cost(self) -> Cost:
        return Cost(n_elements=self.width)

    def evaluate(self, context: OpContext) -> None:
        cap = np.float32(self.cap)
        context.values[self.value] = cap * np.tanh(context.values[self.value] / cap)


OP = SoftCap
