"""Keys and values of new tokens, written to the KV cache."""

from __future__ import annotations

from dataclasses import dataclass

from edgeinfer.graph.op import Access, Cost, Op, OpContext


@dataclass(frozen=True, slots=True)
class StoreKV(Op):
    """Write rows of keys [T, G * key_width] and values [T, G * value_width] to the KV cache `layer`.

    They are written to the slots of the step. Later layers may read the same cache.
    """

    key: str
    value: str
    layer: int
    kv_heads: int
    key_width: int
    value_width: int

    @property
    def accesses(self) -> tuple[tuple[Access, ...], tuple[Access, ...]]:
        key = Access(self.key, self.kv_heads * self.key_width)
        return (key, Access(self.value, self.kv_heads * self.value_width)), ()

    @property
    def cost(self) -> Cost:
        return Cost(n_elements=self.kv_heads * (self.key_width + self.value_width))

    def evaluate(self, context: OpContext) -> None:
        slots = context.located(self.layer, context.step.slots)
        keys, values = context.cache(self.layer)
        for name, width, cache in ((self.key, self.key_width, keys), (self.value, self.value_width, values)):
            rows = context.kept(self, name, width, is_key=cache is keys)
            cache[slots] = rows.reshape(-1, self.kv_heads, width)


OP = StoreKV
