"""Sums of buffers."""

from __future__ import annotations

from dataclasses import dataclass

from edgeinfer.graph.op import Access, Cost, Op, OpContext


@dataclass(frozen=True, slots=True)
class Add(Op):
    """out += source."""

    source: str
    out: str
    width: int

    @property
    def accesses(self) -> tuple[tuple[Access, ...], tuple[Access, ...]]:
        source, out = Access(self.source, self.width), Access(self.out, self.width)
        return (source, out), (out,)

    @property
    def cost(self) -> Cost:
        return Cost(n_elements=self.width)

    def evaluate(self, context: OpContext) -> None:
        context.values[self.out] = context.values[self.out] + context.values[self.source]


OP = Add
