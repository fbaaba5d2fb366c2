"""Head outputs times a gate per head (Laguna)."""

from __future__ import annotations

from dataclasses import dataclass

from edgeinfer.graph.activations import softplus
from edgeinfer.graph.op import Access, Cost, Op, OpContext


@dataclass(frozen=True, slots=True)
class GatedHeads(Op):
    """value[t, h] *= softplus(gate[t, h]), in place: rows of `heads` heads of `width` numbers."""

    gate: str
    value: str
    heads: int
    width: int

    @property
    def accesses(self) -> tuple[tuple[Access, ...], tuple[Access, ...]]:
        value = Access(self.value, self.heads * self.width)
        return (Access(self.gate, self.heads), value), (value,)

    @property
    def cost(self) -> Cost:
        return Cost(n_elements=self.heads * self.width)

    def evaluate(self, context: OpContext) -> None:
        rows, gates = context.values[self.value], softplus(context.values[self.gate])
        context.values[self.value] = (rows.reshape(len(rows), self.heads, -1) * gates[:, :, None]).reshape(rows.shape)


OP = GatedHeads
