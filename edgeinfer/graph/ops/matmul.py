"""The product of rows and a weight matrix."""

from __future__ import annotations

from dataclasses import dataclass

from edgeinfer.graph.op import Access, Cost, MatMulCost, Op, OpContext
from edgeinfer.graph.operands import Precision, Weight


@dataclass(frozen=True, slots=True)
class MatMul(Op):
    """out = source @ weight.T (+ bias), or out += the same when `accumulate`.

    `precision`: what is enough if the weight is of floats.
    """

    source: str
    out: str
    weight: Weight
    bias: Weight | None = None
    accumulate: bool = False
    precision: Precision = "highest"

    @property
    def accesses(self) -> tuple[tuple[Access, ...], tuple[Access, ...]]:
        source, out = Access(self.source, self.weight.columns), (Access(self.out, self.weight.n_rows),)
        return (source, *(out if self.accumulate else ())), out

    @property
    def matrices(self) -> tuple[Weight, ...]:
        return (self.weight,)

    @property
    def vectors(self) -> tuple[Weight, ...]:
        return () if self.bias is None else (self.bias,)

    @property
    def cost(self) -> Cost:
        return Cost(products=(MatMulCost(self.weight, self.source, precision=self.precision),))

    def evaluate(self, context: OpContext) -> None:
        source, values = context.values[self.source], context.values
        if context.rounds(self.weight):
            source = context.rounded(self, self.source, source)
        product = source @ context.matrix(self.weight).T
        if self.bias is not None:
            product = product + context.vector(self.bias)
        values[self.out] = values[self.out] + product if self.accumulate else product


OP = MatMul
