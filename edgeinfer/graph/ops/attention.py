"""Attention over a token's ancestors or its whole text, with grouped heads, windows, soft-capped scores and sinks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgeinfer.graph.op import Access, AttentionHeads, Cost, Op, OpContext
from edgeinfer.graph.operands import Weight
from edgeinfer.graph.step import Floats


@dataclass(frozen=True, slots=True)
class Attention(Op):
    """out = softmax(cap(scale * query @ keys)) @ values over a token's ancestors and itself, per head.

    `layer`: the KV cache to read, this layer's or an earlier one's. Queries are as wide as keys; head outputs are as
    wide as values.

    `window` w: only positions > own position - w. Without `causal`, a token attends to all tokens of its text, which
    must be in one pass, or, with a window, to those less than w positions away. If `chunked`, windows do not slide: a
    token attends to positions from the last multiple of w on (Llama 4). `soft_cap` c: scores become c * tanh(score /
    c). `sinks`: one extra score per head that joins the softmax but contributes no value (Xiao et al.,
    arXiv 2309.17453; gpt-oss). `alibi`: how far away a key is lowers its score, by a slope per head from 2^(-alibi / n)
    down to 2^-alibi (Press et al., arXiv 2108.12409).
    """

    query: str
    out: str
    layer: int
    heads: int
    kv_heads: int
    key_width: int
    value_width: int
    scale: float
    window: int | None = None
    soft_cap: float | None = None
    sinks: Weight | None = None
    causal: bool = True
    alibi: float | None = None
    chunked: bool = False

    @property
    def accesses(self) -> tuple[tuple[Access, ...], tuple[Access, ...]]:
        query, out = self.heads * self.key_width, self.heads * self.value_width
        return (Access(self.query, query),), (Access(self.out, out),)

    @property
    def vectors(self) -> tuple[Weight, ...]:
        return () if self.sinks is None else (self.sinks,)

    @property
    def cost(self) -> Cost:
        heads = AttentionHeads(self.heads, self.kv_heads, self.key_width, self.value_width, self.window)
        return Cost(vectors=self.vectors, attention=heads)

    def evaluate(self, context: OpContext) -> None:
        all_keys, all_values = context.cache(self.layer)
        queries = context.queried(self, self.query, self.scale, self.key_width)
        queries = queries.reshape(len(queries), self.kv_heads, -1, self.key_width)
        sinks = None if self.sinks is None else context.vector(self.sinks).reshape(self.kv_heads, -1, 1)
        attended = np.empty((len(queries), self.heads * self.value_width), np.float32)
        for token, query in enumerate(queries):
            slots = context.located(self.layer, self._slots(context, token))
            keys, values = all_keys[slots].astype(np.float32), all_values[slots].astype(np.float32)
            attended[token] = self._attend(query, keys, values, sinks, self._lowered(context, token, len(slots)))
        context.values[self.out] = attended

    def _lowered(self, context: OpContext, token: int, n_slots: int) -> Floats | None:
        """What distances take off a token's scores: float32[G, H / G, S], or None."""
        if self.alibi is None:
            return None
        position = int(context.step.batch.positions[token])
        first = position - n_slots + 1 if self.causal else max(0, position + 1 - (self.window or position + 1))
        distances = np.abs(np.arange(first, first + n_slots) - position).astype(np.float32)
        lowered: Floats = slopes(self.heads, self.alibi).reshape(self.kv_heads, -1, 1) * distances
        return lowered

    def _slots(self, context: OpContext, token: int) -> NDArray[np.int64]:
        """The slots a token attends to."""
        slots = context.visible_slots[token]
        if self.causal and self.window is not None:
            n_seen = self.window
            if self.chunked:
                n_seen = int(context.step.batch.positions[token]) % self.window + 1
            return slots[-n_seen:]
        if self.causal:
            return slots
        step = context.step
        slots = context.visible_slots[int(np.flatnonzero(step.rows == step.rows[token])[-1])]
        position, window = int(step.batch.positions[token]), self.window or len(slots)
        return slots[max(0, position - window + 1) : position + window]

    def _attend(
        self, query: Floats, keys: Floats, values: Floats, sinks: Floats | None, lowered: Floats | None
    ) -> Floats:
        """Attention of one token: query float32[G, H / G, K], keys float32[S, G, K], values float32[S, G, V].

        `sinks` is [G, H / G, 1], `lowered` [G, H / G, S]. Returns float32[H * V].
        """
        scores = np.einsum("grk,sgk->grs", query, keys)
        if self.soft_cap is not None:
            scores = np.float32(self.soft_cap) * np.tanh(scores / np.float32(self.soft_cap))
        scores = scores if lowered is None else scores - lowered
        largest = scores.max(axis=-1, keepdims=True)
        largest = largest if sinks is None else np.maximum(largest, sinks)
        powers = np.exp(scores - largest)
        total = powers.sum(axis=-1, keepdims=True)
        shares = powers / (total if sinks is None else total + np.exp(sinks - largest))
        attended: Floats = np.einsum("grs,sgv->grv", shares, values).reshape(-1)
        return attended


def slopes(heads: int, alibi: float) -> Floats:
    """ALiBi's slope of each head, float32[H]; heads beyond a power of two lie between the others."""
    n = 1 << (heads.bit_length() - 1)
    exponents = [(head + 1) / n if head < n else (2 * (head - n) + 1) / (2 * n) for head in range(heads)]
    return np.exp2(-alibi * np.array(exponents)).astype(np.float32)


OP = Attention
