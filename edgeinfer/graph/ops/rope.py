"""Rotary position embedding (Su et al., arXiv 2104.09864), also of three axes (Qwen2-VL, arXiv 2409.12191)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from edgeinfer.graph.cost import Cost
from edgeinfer.graph.op import Access, Op, OpContext
from edgeinfer.graph.step import Floats


@dataclass(frozen=True, slots=True)
class RopeTable:
    """Rotary embedding frequencies; `models.rope` turns it into numbers.

    `factors` names a float32[rotary_width / 2] tensor that divides the frequencies (Llama 3, LongRoPE), or is None.
    `scaling` linear divides all frequencies by `factor`; yarn blends by wavelength (Peng et al., arXiv 2309.00071).
    `magnitude` multiplies cos and sin.
    """

    base: float
    rotary_width: int
    scaling: Literal["none", "linear", "yarn"] = "none"
    factor: float = 1.0
    original_context: int = 0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    magnitude: float = 1.0
    factors: str | None = None


@dataclass(frozen=True, slots=True)
class RopeSections:
    """Which of a token's three positions turns each rotary pair: so many pairs by the temporal one, height, width.

    In that order, or `interleaved`: height takes the pairs 1, 4, 7 …, width 2, 5, 8 … (Qwen3-VL).
    """

    temporal: int
    height: int
    width: int
    interleaved: bool = False

    def axes(self) -> NDArray[np.int64]:
        """The axis of each pair: int64[rotary_width / 2], 0 temporal, 1 height, 2 width."""
        if not self.interleaved:
            return np.repeat(np.arange(3), (self.temporal, self.height, self.width))
        found = np.zeros(self.temporal + self.height + self.width, np.int64)
        found[1 : 3 * self.height : 3] = 1
        found[2 : 3 * self.width : 3] = 2
        return found


@dataclass(frozen=True, slots=True)
class Rope(Op):
    """Rotate `value` in place: half-split pairs (i, i + rotary_width / 2) of each head by position * frequency.

    `sections`: which position that is, of tokens that have three (`Batch.axes`); None for models that have one.
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
