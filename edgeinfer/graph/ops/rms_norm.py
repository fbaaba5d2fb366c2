"""RMSNorm (Zhang & Sennrich, arXiv 1910.07467)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from edgeinfer.graph.op import Access, Cost, Op, OpContext
from edgeinfer.graph.operands import Weight
from edgeinfer.graph.step import Floats


@dataclass(frozen=True, slots=True)
class RMSNorm(Op):
    """out = source / sqrt(mean(source^2) + epsilon) * weight, over each of `groups` slices of `width`.

    Without a `weight` nothing is multiplied (values of Gemma 4). `own`: each slice has its own `width` weights.
    """

    readies_rows: ClassVar[bool] = True

    source: str
    out: str
    weight: Weight | None
    width: int
    epsilon: float
    groups: int = 1
    own: bool = False

    @property
    def accesses(self) -> tuple[tuple[Access, ...], tuple[Access, ...]]:
        width = self.groups * self.width
        return (Access(self.source, width),), (Access(self.out, width),)

    @property
    def vectors(self) -> tuple[Weight, ...]:
        return () if self.weight is None else (self.weight,)

    @property
    def cost(self) -> Cost:
        return Cost(vectors=self.vectors, n_elements=self.width * self.groups)

    def evaluate(self, context: OpContext) -> None:
        source, weight = context.values[self.source], None if self.weight is None else context.vector(self.weight)
        context.values[self.out] = rms_norm(source, weight, self.groups, self.epsilon)


def rms_norm(source: Floats, weight: Floats | None, groups: int, epsilon: float) -> Floats:
    """RMSNorm of each of `groups` slices of rows float32[n, width]; `weight` may be None."""
    sliced = source.reshape(len(source), groups, source.shape[1] // groups)
    mean_square = np.mean(sliced * sliced, axis=-1, keepdims=True, dtype=np.float32)
    root: Floats = np.sqrt(mean_square + np.float32(epsilon))
    normed: Floats = sliced / root
    normed = normed if weight is None else normed * weight.reshape(-1, sliced.shape[2])
    return normed.reshape(source.shape)


OP = RMSNorm
