"""Rows scaled to the magnitude of others."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from edgeinfer.graph.op import Access, Cost, Op, OpContext
from edgeinfer.graph.step import Floats


@dataclass(frozen=True, slots=True)
class MatchMagnitude(Op):
    """value = value * sqrt(mean(target^2) / max(mean(value^2), least)), in place."""

    value: str
    target: str
    width: int
    least: float

    @property
    def accesses(self) -> tuple[tuple[Access, ...], tuple[Access, ...]]:
        value = Access(self.value, self.width)
        return (value, Access(self.target, self.width)), (value,)

    @property
    def cost(self) -> Cost:
        return Cost(n_elements=2 * self.width)

    def evaluate(self, context: OpContext) -> None:
        value, target = context.values[self.value], context.values[self.target]
        own: Floats = np.sqrt(np.maximum(_mean_square(value), np.float32(self.least)))
        wanted: Floats = np.sqrt(_mean_square(target))
        context.values[self.value] = value * (wanted / own)


def _mean_square(rows: Floats) -> Floats:
    """The mean of the squares of each row: float32[n, 1]."""
    mean: Floats = np.mean(rows * rows, axis=-1, keepdims=True, dtype=np.float32)
    return mean


OP = MatchMagnitude
