"""Mamba-2's selective state space: a recurrence over tokens whose state is one matrix per head."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from edgeinfer.graph.op import Access, Cost, Op, OpContext
from edgeinfer.graph.operands import Weight
from edgeinfer.graph.step import Floats


@dataclass(frozen=True, slots=True)
class StateSpace(Op):
    """S = e^(d rate) S + b (d x)^T; out = S^T c + skip x, for each head, token by token; d = softplus(steps + shift).

    `mixed` holds x of `heads` heads of `head_width` P numbers, then b and after it c of `groups` groups of
    `state_width` N numbers: float32[T, heads * P + 2 * groups * N]. Adjacent heads share the b and c of a group.
    `steps`, `rate`, `shift` and `skip` have one number per head; `steps` is overwritten with d. S, float32[N, P] per
    head, is the layer's state number `state`. Source: Mamba-2 (Dao & Gu, arXiv 2405.21060).
    """

    mixed: str
    steps: str
    out: str
    state: int
    heads: int
    head_width: int
    groups: int
    state_width: int
    rate: Weight
    shift: Weight
    skip: Weight

    @property
    def mixed_width(self) -> int:
        """All numbers of a token in `mixed`."""
        return self.heads * self.head_width + 2 * self.groups * self.state_width

    @property
    def accesses(self) -> tuple[tuple[Access, ...], tuple[Access, ...]]:
        mixed, steps = Access(self.mixed, self.mixed_width), Access(self.steps, self.heads)
        return (mixed, steps), (steps, Access(self.out, self.heads * self.head_width))

    @property
    def vectors(self) -> tuple[Weight, ...]:
        return self.rate, self.shift, self.skip

    @property
    def cost(self) -> Cost:
        return Cost(vectors=self.vectors, n_elements=self.heads * self.head_width * (1 + self.state_width // 12))

    def evaluate(self, context: OpContext) -> None:
        values, inner = context.values, self.heads * self.head_width
        mixed = values[self.mixed]
        given, first, second = np.split(mixed, [inner, inner + self.groups * self.state_width], axis=1)
        own = given.reshape(len(mixed), self.heads, self.head_width)
        keys, queries = (self._of_heads(part) for part in (first, second))
        steps = np.logaddexp(np.float32(0.0), values[self.steps] + context.vector(self.shift))
        decay = np.exp(context.vector(self.rate) * steps)
        out = np.empty_like(own)

        def advance(token: int, before: Floats) -> Floats:
            added = np.einsum("hn,hp->hnp", keys[token], steps[token, :, None] * own[token])
            state: Floats = decay[token, :, None, None] * before + added
            out[token] = np.einsum("hnp,hn->hp", state, queries[token])
            return state

        context.walk(self.state, advance)
        values[self.steps] = steps
        values[self.out] = (out + context.vector(self.skip)[:, None] * own).reshape(len(mixed), inner)

    def _of_heads(self, groups: Floats) -> Floats:
        """Each head's numbers of its group: float32[T, heads, N]."""
        shaped = groups.reshape(len(groups), self.groups, self.state_width)
        repeated: Floats = np.repeat(shaped, self.heads // self.groups, axis=1)
        return repeated


OP = StateSpace
