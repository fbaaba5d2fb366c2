"""Attention over a token's ancestors or its whole text, with grouped heads, windows, soft-capped scores and sinks.

Scores may also depend on how far away a key is: ALiBi, or T5's learned biases.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgeinfer.graph.block_choice import SAMPLED, chosen_chunks, sampled_tokens
from edgeinfer.graph.budget import recent_and_best, unseen_chunks
from edgeinfer.graph.op import Access, AttentionHeads, BlockAttention, Cost, Op, OpContext
from edgeinfer.graph.operands import Precision, Weight
from edgeinfer.graph.step import PAGE, Floats

FARTHEST = 128
"""Keys at least as far away share T5's last bucket."""


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
    down to 2^-alibi (Press et al., arXiv 2108.12409). `relative`: what is added to scores, float32[buckets, H] as one
    vector, by the bucket of the distance and the head (Raffel et al., arXiv 1910.10683). Where a pass states budgets,
    layers without a window attend to a part of the positions (`graph.budget`). `block_budget`: blocks of a prompt
    attend to about that many positions (`graph.block_choice`). `spans`: where a pass states spans, a token sees the
    positions of its own, later ones too; a window limits the first of them. Without any it sees what `causal` says.
    `precision`: what is enough.
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
    relative: Weight | None = None
    block_budget: int | None = None
    spans: bool = False
    precision: Precision = "highest"

    @property
    def accesses(self) -> tuple[tuple[Access, ...], tuple[Access, ...]]:
        query, out = self.heads * self.key_width, self.heads * self.value_width
        return (Access(self.query, query),), (Access(self.out, out),)

    @property
    def vectors(self) -> tuple[Weight, ...]:
        return tuple(weight for weight in (self.sinks, self.relative) if weight is not None)

    @property
    def cost(self) -> Cost:
        blocks = None if self.block_budget is None else BlockAttention(PAGE, self.block_budget, SAMPLED)
        sizes = self.heads, self.kv_heads, self.key_width, self.value_width
        exact = ("highest", math.inf) if self.spans else (self.precision, None)
        heads = AttentionHeads(*sizes, self.window, blocks, self.causal, *exact)
        return Cost(vectors=self.vectors, attention=heads)

    def evaluate(self, context: OpContext) -> None:
        all_keys, all_values = context.cache(self.layer)
        queries = context.queried(self, self.query, self.scale, self.key_width)
        queries = queries.reshape(len(queries), self.kv_heads, -1, self.key_width)
        sinks = None if self.sinks is None else context.vector(self.sinks).reshape(self.kv_heads, -1, 1)
        attended = np.empty((len(queries), self.heads * self.value_width), np.float32)
        batch, starts = context.step.batch, context.step.starts
        seen = None if self.window is not None or batch.budgets is None else recent_and_best(batch, starts)
        unseen = self._unseen(context, queries, all_keys)
        for token, query in enumerate(queries):
            slots = context.located(self.layer, self._slots(context, token))
            keys, values = all_keys[slots].astype(np.float32), all_values[slots].astype(np.float32)
            raised = self._raised(context, token, len(slots))
            if seen is not None and seen[0][token]:
                raised = self._lowered(context, token, keys, (int(seen[0][token]), int(seen[1][token])), raised)
            elif token in unseen:
                raised = lowered(unseen[token], len(keys), raised)
            attended[token] = self._attend(query, keys, values, sinks, raised)
        context.values[self.out] = attended

    def _raised(self, context: OpContext, token: int, n_slots: int) -> Floats | None:
        """What distances add to a token's scores: float32[G, H / G, S], or None."""
        if self.alibi is None and self.relative is None:
            return None
        position, first = int(context.step.batch.positions[token]), self._first(context, token)
        distances = np.arange(first, first + n_slots) - position
        raised: Floats = np.zeros((self.heads, n_slots), np.float32)
        if self.alibi is not None:
            raised -= slopes(self.heads, self.alibi)[:, None] * np.abs(distances).astype(np.float32)
        if self.relative is not None:
            raised += biases(context.vector(self.relative), self.heads, distances, causal=self.causal)
        return raised.reshape(self.kv_heads, -1, n_slots)

    def _lowered(
        self, context: OpContext, token: int, keys: Floats, seen: tuple[int, int], raised: Floats | None
    ) -> Floats:
        """`raised`, with minus infinity for positions outside of a token's budget: float32[G, H / G, S].

        `seen`: its first recent chunk, and how many of those before it sees.
        """
        query = context.values[self.query][token].reshape(self.kv_heads, -1, self.key_width) * np.float32(self.scale)
        unseen = unseen_chunks(context.summarised(query), context.summarised(keys), *seen)
        return lowered(unseen, len(keys), raised)

    def _unseen(
        self, context: OpContext, queries: Floats, all_keys: NDArray[np.generic]
    ) -> dict[int, NDArray[np.bool_]]:
        """Which chunks the tokens of blocks do not see, by token and KV head: bool[G, chunks]."""
        found: dict[int, NDArray[np.bool_]] = {}
        firsts = context.step.batch.blocks
        if self.block_budget is None or firsts is None:
            return found
        for first in firsts.tolist():
            before = context.located(self.layer, context.visible_slots[first][:-1])
            keys, rows = all_keys[before].astype(np.float32), list[Floats]()
            for token in (first + sampled_tokens()).tolist():
                raised = self._raised(context, token, len(context.visible_slots[token]))
                raised = None if raised is None else raised[..., : len(keys)]
                rows.append(self._scores(queries[token], keys, raised))
            scores = np.concatenate(rows, axis=1)
            unseen = ~np.stack([chosen_chunks(of_head, self.block_budget) for of_head in scores])
            found |= dict.fromkeys(range(first, first + PAGE), unseen)
        return found

    def _first(self, context: OpContext, token: int) -> int:
        """The first position a token attends to."""
        batch, first = context.step.batch, 0
        position = int(batch.positions[token])
        if self.window is not None:
            first = position // self.window * self.window if self.chunked else max(0, position + 1 - self.window)
        if self.spans and batch.spans is not None:
            first = max(first, int(batch.spans[token, 0]))
        return first

    def _slots(self, context: OpContext, token: int) -> NDArray[np.int64]:
        """The slots a token attends to."""
        step, first = context.step, self._first(context, token)
        position = int(step.batch.positions[token])
        if self.spans and step.batch.spans is not None:  # those after it in a chain of tokens
            return context.visible_slots[token + int(step.batch.spans[token, 1]) - position][first:]
        if self.causal:
            slots = context.visible_slots[token]
            return slots[max(0, len(slots) - 1 - position + first) :]
        slots = context.visible_slots[int(np.flatnonzero(step.rows == step.rows[token])[-1])]
        return slots[first : position + (self.window or len(slots))]

    def _scores(self, query: Floats, keys: Floats, raised: Floats | None) -> Floats:
        """Scores of one token before the softmax, as `_attend` takes its arguments: float32[G, H / G, S]."""
        scores: Floats = np.einsum("grk,sgk->grs", query, keys)
        if self.soft_cap is not None:
            scores = np.float32(self.soft_cap) * np.tanh(scores / np.float32(self.soft_cap))
        return scores if raised is None else scores + raised

    def _attend(
        self, query: Floats, keys: Floats, values: Floats, sinks: Floats | None, raised: Floats | None
    ) -> Floats:
        """Attention of one token: query float32[G, H / G, K], keys float32[S, G, K], values float32[S, G, V].

        `sinks` is [G, H / G, 1], `raised` [G, H / G, S]. Returns float32[H * V].
        """
        scores = self._scores(query, keys, raised)
        largest = scores.max(axis=-1, keepdims=True)
        largest = largest if sinks is None else np.maximum(largest, sinks)
        powers = np.exp(scores - largest)
        total = powers.sum(axis=-1, keepdims=True)
        shares = powers / (total if sinks is None else total + np.exp(sinks - largest))
        attended: Floats = np.einsum("grs,sgv->grv", shares, values).reshape(-1)
        return attended


def lowered(unseen: NDArray[np.bool_], n_positions: int, raised: Floats | None) -> Floats:
    """What is added to a token's scores, minus infinity for chunks that it does not see: float32[G, H / G or 1, S].

    unseen bool[G, chunks]; `raised` float32[G, H / G, S]: what is added to them anyway.
    """
    found = np.where(np.repeat(unseen, PAGE, axis=1)[:, :n_positions], -np.inf, 0.0).astype(np.float32)[:, None]
    return found if raised is None else found + raised


def slopes(heads: int, alibi: float) -> Floats:
    """ALiBi's slope of each head, float32[H]; heads beyond a power of two lie between the others."""
    n = 1 << (heads.bit_length() - 1)
    exponents = [(head + 1) / n if head < n else (2 * (head - n) + 1) / (2 * n) for head in range(heads)]
    return np.exp2(-alibi * np.array(exponents)).astype(np.float32)


def biases(table: Floats, heads: int, distances: NDArray[np.int64], *, causal: bool) -> Floats:
    """T5's bias of each head at each distance (negative: an earlier key), float32[H, n], from float32[buckets * H]."""
    by_bucket = table.reshape(-1, heads)
    found: Floats = by_bucket[buckets(distances, len(by_bucket), causal=causal)].T
    return found


def buckets(distances: NDArray[np.int64], n_buckets: int, *, causal: bool) -> NDArray[np.int64]:
    """T5's bucket of each distance: one for each of the nearest, logarithmic ones up to `FARTHEST`.

    Without `causal` half of them are for later keys. Logarithms are float32, as in the models' own code.
    """
    away = np.maximum(-distances, 0) if causal else np.abs(distances)
    side = n_buckets if causal else n_buckets // 2
    exact = side // 2
    growth = np.log(np.maximum(away, 1).astype(np.float32) / np.float32(exact)) / np.float32(math.log(FARTHEST / exact))
    far = np.minimum(exact + (growth * np.float32(side - exact)).astype(np.int64), side - 1)
    found = np.where(away < exact, away, far)
    return found if causal else found + side * (distances > 0)


OP = Attention
