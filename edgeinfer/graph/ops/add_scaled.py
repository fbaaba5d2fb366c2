"""Sums in which each row has a factor of its own: what a LoRA adapter adds, as much of it as each sequence asks for."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from edgeinfer.graph.op import Access, Cost, Op, OpContext
from edgeinfer.graph.step import Batch, Floats


def row_scales(batch: Batch, adapter: int, scale: float, n_rows: int) -> Floats:
    """The scale of a LoRA adapter for each of the tokens or output rows of a pass: float32[n_rows].

    `scale`: that of all rows if the pass states none.
    """
    if batch.scales is None:
        return np.full(n_rows, scale, np.float32)
    stated: Floats = batch.scales[:, adapter]
    return stated if len(stated) == n_rows else stated[batch.outputs]


@dataclass(frozen=True, slots=True)
class AddScaled(Op):
    """out += scale * factor * source for each row whose scale is not 0; the others keep their bits.

    Scales are those of the pass for `adapter` (`Batch.scales`), or `scale` for all rows if the pass states none.
    """

    source: str
    out: str
    width: int
    adapter: int
    factor: float
    scale: float

    @property
    def accesses(self) -> tuple[tuple[Access, ...], tuple[Access, ...]]:
        source, out = Access(self.source, self.width), Access(self.out, self.width)
        return (source, out), (out,)

    @property
    def cost(self) -> Cost:
        return Cost(n_elements=self.width)

    def evaluate(self, context: OpContext) -> None:
        source, out = context.values[self.source], context.values[self.out].copy()
        scales = row_scales(context.step.batch, self.adapter, self.scale, len(out))
        added = np.flatnonzero(scales)
        out[added] += scales[added, None] * np.float32(self.factor) * source[added]
        context.values[self.out] = out


OP = AddScaled
