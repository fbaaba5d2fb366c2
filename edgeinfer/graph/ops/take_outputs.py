"""Reduce the rows of all tokens to those whose logits are requested."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from edgeinfer.graph.op import Access, Cost, Op, OpContext


@dataclass(frozen=True, slots=True)
class TakeOutputs(Op):
    """out[o] = source[row of output o]: later ops compute only rows whose logits are requested."""

    takes_outputs: ClassVar[bool] = True

    source: str
    out: str
    width: int

    @property
    def accesses(self) -> tuple[tuple[Access, ...], tuple[Access, ...]]:
        return (Access(self.source, self.width),), (Access(self.out, self.width),)

    @property
    def cost(self) -> Cost:
        return Cost(n_elements=self.width)

    def evaluate(self, context: OpContext) -> None:
        context.values[self.out] = context.values[self.source][context.step.batch.outputs]


OP = TakeOutputs
