"""The highest values of a row, found by its mean and spread (Gemma 3n's activation sparsity)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from edgeinfer.graph.op import Access, Cost, Op, OpContext
from edgeinfer.graph.step import Floats


@dataclass(frozen=True, slots=True)
class KeepHighest(Op):
    """value = max(value - cut, 0), in place, with cut = mean + deviations * standard deviation of the row.

    The deviation is that of the row itself: the square root of the mean of squares, not divided by one less.
    """

    value: str
    width: int
    deviations: float

    @property
    def accesses(self) -> tuple[tuple[Access, ...], tuple[Access, ...]]:
        value = (Access(self.value, self.width),)
        return value, value

    @property
    def cost(self) -> Cost:
        return Cost(n_elements=3 * self.width)

    def evaluate(self, context: OpContext) -> None:
        context.values[self.value] = keep_highest(context.values[self.value], self.deviations)


def keep_highest(rows: Floats, deviations: float) -> Floats:
    """What is left of rows float32[n, width]."""
    mean = np.mean(rows, axis=-1, keepdims=True, dtype=np.float32)
    squares = np.mean((rows - mean) ** 2, axis=-1, keepdims=True, dtype=np.float32)
    kept: Floats = np.maximum(rows - (mean + np.float32(deviations) * np.sqrt(squares)), np.float32(0.0))
    return kept


OP = KeepHighest
