"""LayerNorm (Ba et al., arXiv 1607.06450)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from edgeinfer.graph.op import Access, Cost, Op, OpContext
from edgeinfer.graph.operands import Weight
from edgeinfer.graph.step import Floats


@dataclass(frozen=True, slots=True)
class LayerNorm(Op):
    """out = (source - mean) / sqrt(variance + epsilon) * weight + bias, over each of `groups` slices of `width`.

    Each slice has its part of `weight` and `bias`. Without a `weight` nothing is multiplied, without a `bias` nothing
    is added (Cohere's models, OLMo).
    """

    readies_rows: ClassVar[bool] = True

    source: str
    out: str
    weight: Weight | None
    bias: Weight | None
    width: int
    epsilon: float
    groups: int = 1

    @property
    def accesses(self) -> tuple[tuple[Access, ...], tuple[Access, ...]]:
        width = self.groups * self.width
        return (Access(self.source, width),), (Access(self.out, width),)

    @property
    def vectors(self) -> tuple[Weight, ...]:
        return tuple(part for part in (self.weight, self.bias) if part is not None)

    @property
    def cost(self) -> Cost:
        return Cost(vectors=self.vectors, n_elements=self.groups * self.width)

    def evaluate(self, context: OpContext) -> None:
        weight, bias = (None if part is None else context.vector(part) for part in (self.weight, self.bias))
        context.values[self.out] = layer_norm(context.values[self.source], weight, bias, self.epsilon, self.groups)


def layer_norm(source: Floats, weight: Floats | None, bias: Floats | None, epsilon: float, groups: int = 1) -> Floats:
    """LayerNorm of each of `groups` slices of rows float32[n, width]; `weight` and `bias` may be None."""
    sliced = source.reshape(len(source), groups, source.shape[1] // groups)
    centred: Floats = sliced - np.mean(sliced, axis=-1, keepdims=True, dtype=np.float32)
    variance = np.mean(centred * centred, axis=-1, keepdims=True, dtype=np.float32)
    deviation: Floats = np.sqrt(variance + np.float32(epsilon))
    normed: Floats = (centred / deviation).reshape(source.shape)
    normed = normed if weight is None else normed * weight
    return normed if bias is None else normed + bias


OP = LayerNorm
