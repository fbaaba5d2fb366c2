"""One of several equal parts of rows."""

from __future__ import annotations

from dataclasses import dataclass

from edgeinfer.graph.op import Access, Cost, Op, OpContext


@dataclass(frozen=True, slots=True)
class TakePart(Op):
    """out = columns part * width to (part + 1) * width of `source`, which has `parts` parts of that width."""

    source: str
    out: str
    parts: int
    part: int
    width: int

    @property
    def accesses(self) -> tuple[tuple[Access, ...], tuple[Access, ...]]:
        return (Access(self.source, self.parts * self.width),), (Access(self.out, self.width),)

    @property
    def cost(self) -> Cost:
        return Cost(n_elements=self.width)

    def evaluate(self, context: OpContext) -> None:
        first = self.part * self.width
        context.values[self.out] = context.values[self.source][:, first : first + self.width].copy()


OP = TakePart
