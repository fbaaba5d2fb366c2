"""Keys and values of new tokens, written into the KV cache."""

from __future__ import annotations

from dataclasses import dataclass

from edgeinfer.graph.cost import Cost
from edgeinfer.graph.op import Access, Op, OpContext


@dataclass(frozen=True, slots=True)
class StoreKV(Op):
    """Write key and value rows [T, G * K] into the KV cache of `layer` at the slots of the step."""

    key: str
    value: str
    layer: int
    kv_heads: int
    head_width: int

    @property
    def accesses(self) -> tuple[tuple[Access, ...], tuple[Access, ...]]:
        width = self.kv_heads * self.head_width
        return (Access(self.key, width), Access(self.value, width)), ()

    @property
    def cost(self) -> Cost:
        return Cost(n_elements=2 * self.kv_heads * self.head_width)

    def evaluate(self, context: OpContext) -> None:
        slots = context.located(self.layer, context.step.slots)
        for name, cache in zip((self.key, self.value), context.cache(self.layer), strict=True):
            rows = context.kept(self, name, self.head_width)
            cache[slots] = rows.reshape(-1, self.kv_heads, self.head_width)


OP = StoreKV
