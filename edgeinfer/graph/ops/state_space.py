"""Mamba's selective state spaces: recurrences over tokens whose state is one matrix per head."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from edgeinfer.graph.op import Access, Cost, Op, OpContext
from edgeinfer.graph.operands import Weight
from edgeinfer.graph.step import Floats

ROW, ROW_BY_COLUMN = 0.15, 1.2
"""How long a row of the state takes for one column, in numbers written elsewhere: measured, on an AVX-512 CPU."""


@dataclass(frozen=True, slots=True)
class StateSpace(Op):
    """S = e^(d rate) S + b (d x)^T; out = S^T c + skip x, for each head, token by token; d = softplus(steps + shift).

    `mixed` holds x of `heads` heads of `head_width` P numbers, then b and after it c of `groups` groups of
    `state_width` N numbers: float32[T, heads * P + 2 * groups * N]. `apart`: the buffers of b and of c, if these are
    not in `mixed`. Adjacent heads share the b and c of a group. `steps`, `rate`, `shift` and `skip` have one number per
    head; `steps` is overwritten with d. `by_column`: they have one per column of a head, and `rate` N for each of these
    (Mamba-1). S, float32[N, P] per head, is the layer's state number `state`. Sources: Mamba-2 (Dao & Gu, arXiv
    2405.21060), Mamba (Gu & Dao, arXiv 2312.00752).
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
    apart: tuple[str, str] | None = None
    by_column: bool = False

    @property
    def inner(self) -> int:
        """Width of all heads together."""
        return self.heads * self.head_width

    @property
    def n_steps(self) -> int:
        """Numbers of a token in `steps`."""
        return self.inner if self.by_column else self.heads

    @property
    def accesses(self) -> tuple[tuple[Access, ...], tuple[Access, ...]]:
        pairs, steps = self.groups * self.state_width, Access(self.steps, self.n_steps)
        if self.apart is None:
            given: tuple[Access, ...] = (Access(self.mixed, self.inner + 2 * pairs),)
        else:
            given = (Access(self.mixed, self.inner), *(Access(name, pairs) for name in self.apart))
        return (*given, steps), (steps, Access(self.out, self.inner))

    @property
    def vectors(self) -> tuple[Weight, ...]:
        return self.rate, self.shift, self.skip

    @property
    def cost(self) -> Cost:
        each = ROW_BY_COLUMN if self.by_column else ROW
        return Cost(vectors=self.vectors, n_elements=self.inner * (1 + int(self.state_width * each)))

    def evaluate(self, context: OpContext) -> None:
        own, keys, queries = self._given(context)
        steps = np.logaddexp(np.float32(0.0), context.values[self.steps] + context.vector(self.shift))
        lengths = steps.reshape(len(own), self.heads, -1)  # one number per head, or per column
        rates = context.vector(self.rate).reshape(self.heads, -1, self.state_width if self.by_column else 1)
        skip, out = context.vector(self.skip).reshape(self.heads, -1), np.empty_like(own)

        def advance(token: int, before: Floats) -> Floats:
            decay = np.exp(rates * lengths[token, :, :, None]).transpose(0, 2, 1)
            added = np.einsum("hn,hp->hnp", keys[token], lengths[token] * own[token])
            state: Floats = decay * before + added
            out[token] = np.einsum("hnp,hn->hp", state, queries[token])
            return state

        context.walk(self.state, advance)
        context.values[self.steps] = steps
        context.values[self.out] = (out + skip * own).reshape(len(own), self.inner)

    def _given(self, context: OpContext) -> tuple[Floats, Floats, Floats]:
        """x float32[T, heads, P], and each head's b and c of its group: float32[T, heads, N]."""
        mixed, pairs = context.values[self.mixed], self.groups * self.state_width
        if self.apart is None:
            mixed, *others = np.split(mixed, [self.inner, self.inner + pairs], axis=1)
        else:
            others = [context.values[name] for name in self.apart]
        keys, queries = (part.reshape(len(part), self.groups, self.state_width) for part in others)
        repeats = self.heads // self.groups
        own: Floats = mixed.reshape(len(mixed), self.heads, self.head_width)
        return own, np.repeat(keys, repeats, axis=1), np.repeat(queries, repeats, axis=1)


OP = StateSpace
