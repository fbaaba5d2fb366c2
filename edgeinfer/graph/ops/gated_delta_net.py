"""The gated delta rule: a recurrence over tokens whose state is one matrix per value head."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from edgeinfer.graph.op import Access, Cost, Op, OpContext
from edgeinfer.graph.operands import Weight
from edgeinfer.graph.step import Floats

EPSILON = np.float32(1e-6)
"""Added to the sum of squares before queries and keys are normalised to unit length."""


@dataclass(frozen=True, slots=True)
class GatedDeltaNet(Op):
    """S = g S; S += k (b (v - S^T k))^T; out = S^T q / sqrt(K), for each value head, token by token.

    `mixed` holds queries and keys of `key_heads` heads, then values of `value_heads` heads, all `head_width` K wide:
    float32[T, 2 * key_heads * K + value_heads * K]. Queries and keys are normalised to unit length. g = e^(rate *
    softplus(decay + shift)) and b = sigmoid(strength), one each per value head. Value head h uses key head h mod
    `key_heads`, or, if `grouped`, h // (value_heads / key_heads). `by_column`: g, `decay` and `shift` have K numbers
    per value head, one for each row of S (Kimi Delta Attention). S, float32[K, K] per value head, is the layer's state
    number `state`. Sources: Gated Delta Networks (Yang et al., arXiv 2412.06464), Kimi Linear (arXiv 2510.26692).
    """

    mixed: str
    decay: str
    strength: str
    out: str
    state: int
    key_heads: int
    value_heads: int
    head_width: int
    rate: Weight
    shift: Weight
    grouped: bool = False
    by_column: bool = False

    @property
    def n_decays(self) -> int:
        """Numbers of a token in `decay`."""
        return self.value_heads * (self.head_width if self.by_column else 1)

    @property
    def mixed_width(self) -> int:
        """Queries, keys and values of a token."""
        return (2 * self.key_heads + self.value_heads) * self.head_width

    @property
    def accesses(self) -> tuple[tuple[Access, ...], tuple[Access, ...]]:
        heads, width = self.value_heads, self.value_heads * self.head_width
        reads = Access(self.mixed, self.mixed_width), Access(self.decay, self.n_decays), Access(self.strength, heads)
        return reads, (*reads, Access(self.out, width))

    @property
    def vectors(self) -> tuple[Weight, ...]:
        return self.rate, self.shift

    @property
    def cost(self) -> Cost:
        return Cost(vectors=self.vectors, n_elements=self.value_heads * self.head_width * (1 + self.head_width // 8))

    def key_head(self, head: int) -> int:
        """The key head used by a value head."""
        return head // (self.value_heads // self.key_heads) if self.grouped else head % self.key_heads

    def evaluate(self, context: OpContext) -> None:
        values, width = context.values, self.head_width
        heads = values[self.mixed].reshape(len(values[self.mixed]), -1, width)
        queries, keys, own = np.split(heads, [self.key_heads, 2 * self.key_heads], axis=1)
        chosen = [self.key_head(head) for head in range(self.value_heads)]
        queries, keys = _unit(queries)[:, chosen] / np.float32(width**0.5), _unit(keys)[:, chosen]
        shifted = values[self.decay] + context.vector(self.shift)
        lengths = np.logaddexp(np.float32(0.0), shifted).reshape(len(heads), self.value_heads, -1)
        decay = np.exp(context.vector(self.rate)[:, None] * lengths)
        learned = np.float32(1.0) / (np.float32(1.0) + np.exp(-values[self.strength]))
        out = np.empty((len(heads), self.value_heads, width), np.float32)

        def advance(token: int, before: Floats) -> Floats:
            state = decay[token, :, :, None] * before
            missing = own[token] - np.einsum("hkv,hk->hv", state, keys[token])
            state = state + np.einsum("hk,hv->hkv", keys[token], learned[token, :, None] * missing)
            out[token] = np.einsum("hkv,hk->hv", state, queries[token])
            after: Floats = state
            return after

        context.walk(self.state, advance)
        values[self.out] = out.reshape(len(out), -1)


def _unit(rows: Floats) -> Floats:
    """Heads normalised to unit length: float32[T, H, K]."""
    lengths = np.sqrt(np.square(rows).sum(axis=-1, keepdims=True) + EPSILON)
    unit: Floats = rows / lengths
    return unit


OP = GatedDeltaNet
