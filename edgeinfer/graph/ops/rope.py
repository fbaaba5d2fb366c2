"""Rotary position embedding (Su et al., arXiv 2104.09864), also over three axes (Qwen2-VL, arXiv 2409.12191)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from edgeinfer.graph.op import Access, Cost, Op, OpContext
from edgeinfer.graph.rotary import RopeSections, RopeTable
from edgeinfer.graph.step import Floats


@dataclass(frozen=True, slots=True)
class Rope(Op):
    """Rotate `value` in place: half-split pairs (i, i + rotary_width / 2) of each head by position * frequency.

    `sections`: which of a token's three positions (`Batch.axes`) each pair uses; None for models with one position.
    """

    value: str
    heads: int
    head_width: int
    table: RopeTable
    sections: RopeSections | None = None

    @property
    def accesses(self) -> tuple[tuple[Access, ...], tuple[Access, ...]]:
        value = (Access(self.value, self.heads * self.head_width),)
        return value, value

    @property
    def cost(self) -> Cost:
        return Cost(n_elements=self.heads * self.head_width)

    def evaluate(self, context: OpContext) -> None:
        rotations = context.rotations(self.table, self.sections)
        context.values[self.value] = rotate(context.values[self.value], self.heads, *rotations)


def rotate(value: Floats, heads: int, cosines: Floats, sines: Floats) -> Floats:
    """Rotate pairs (i, i + half) of each head: value float32[T, heads * K], cosines and sines float32[T, half]."""
    half = cosines.shape[1]
    split = value.reshape(len(value), heads, -1)
    first, second, rest = split[..., :half], split[..., half : 2 * half], split[..., 2 * half :]
    cos, sin = cosines[:, None, :], sines[:, None, :]
    rotated = np.concatenate([first * cos - second * sin, first * sin + second * cos, rest], axis=-1)
    return rotated.reshape(value.shape)


OP = Rope
