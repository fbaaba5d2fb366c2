"""xIELU (Huang & Schlag, arXiv 2411.13010): an activation whose shape is learned, for networks without a gate."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from edgeinfer.graph.op import Access, Cost, Op, OpContext
from edgeinfer.graph.step import Floats


@dataclass(frozen=True, slots=True)
class XIELU(Op):
    """out = slope * source + rise * source^2 from zero on, slope * source + fall * (e^s - 1 - source) below.

    s is the source, or `edge`, a number slightly below zero, where the source is above that. Zero stays zero.
    """

    source: str
    out: str
    width: int
    rise: float
    fall: float
    slope: float
    edge: float

    @property
    def accesses(self) -> tuple[tuple[Access, ...], tuple[Access, ...]]:
        return (Access(self.source, self.width),), (Access(self.out, self.width),)

    @property
    def cost(self) -> Cost:
        return Cost(n_elements=self.width)

    def evaluate(self, context: OpContext) -> None:
        context.values[self.out] = xielu(context.values[self.source], self)


def xielu(source: Floats, op: XIELU) -> Floats:
    """The activation of values float32[…]."""
    rise, fall, slope, edge = (np.float32(value) for value in (op.rise, op.fall, op.slope, op.edge))
    bent = np.where(source >= 0, rise * source * source, fall * (np.expm1(np.minimum(source, edge)) - source))
    activated: Floats = bent + slope * source
    return activated


OP = XIELU
