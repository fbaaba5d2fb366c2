"""Clipped values (DBRX, MPT and OLMo clip queries, keys and values)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from edgeinfer.graph.op import Access, Cost, Op, OpContext


@dataclass(frozen=True, slots=True)
class Clip(Op):
    """value = the nearest number from -limit to limit, in place."""

    value: str
    width: int
    limit: float

    @property
    def accesses(self) -> tuple[tuple[Access, ...], tuple[Access, ...]]:
        value = (Access(self.value, self.width),)
        return value, value

    @property
    def cost(self) -> Cost:
        return Cost(n_elements=self.width)

    def evaluate(self, context: OpContext) -> None:
        limit = np.float32(self.limit)
        context.values[self.value] = np.clip(context.values[self.value], -limit, limit)


OP = Clip
