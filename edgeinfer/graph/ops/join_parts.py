"""Rows joined from several equal parts."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from edgeinfer.graph.op import Access, Cost, Op, OpContext


@dataclass(frozen=True, slots=True)
class JoinParts(Op):
    """out = the rows of `sources`, each `width` wide, one after another."""

    sources: tuple[str, ...]
    out: str
    width: int

    @property
    def accesses(self) -> tuple[tuple[Access, ...], tuple[Access, ...]]:
        read = tuple(Access(source, self.width) for source in self.sources)
        return read, (Access(self.out, len(self.sources) * self.width),)

    @property
    def cost(self) -> Cost:
        return Cost(n_elements=len(self.sources) * self.width)

    def evaluate(self, context: OpContext) -> None:
        context.values[self.out] = np.concatenate([context.values[source] for source in self.sources], axis=-1)


OP = JoinParts
