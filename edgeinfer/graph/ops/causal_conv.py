"""A causal convolution of each column over the last few tokens, with gates before and after it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from edgeinfer.graph.activations import ACTIVATIONS, Activation
from edgeinfer.graph.op import Access, Cost, Op, OpContext
from edgeinfer.graph.operands import Weight
from edgeinfer.graph.step import Floats


@dataclass(frozen=True, slots=True)
class CausalConv(Op):
    """out[t] = after[t] * activation(sum over k of weight[:, k] * x[t - taps + 1 + k]), x = before * source.

    Each column is convolved over a token's x and those of the `taps` - 1 tokens before it; x before the first token is
    zero. These earlier rows are the layer's state number `state`: float32[taps - 1, width], oldest first. `weight` has
    width * taps numbers, column by column. `source` is overwritten with x. `before`, `after` and `activation` are
    optional. Sources: LFM2's short convolution (arXiv 2511.23404), Mamba-2's (arXiv 2405.21060).
    """

    source: str
    out: str
    state: int
    weight: Weight
    width: int
    taps: int
    before: str | None = None
    after: str | None = None
    activation: Activation | None = None

    @property
    def accesses(self) -> tuple[tuple[Access, ...], tuple[Access, ...]]:
        names = (name for name in (self.source, self.before, self.after) if name is not None)
        return (
            tuple(Access(name, self.width) for name in names),
            (Access(self.source, self.width), Access(self.out, self.width)),
        )

    @property
    def vectors(self) -> tuple[Weight, ...]:
        return (self.weight,)

    @property
    def cost(self) -> Cost:
        return Cost(vectors=self.vectors, n_elements=2 * self.width)

    def evaluate(self, context: OpContext) -> None:
        values, weight = context.values, context.vector(self.weight).reshape(self.width, self.taps).T
        if self.before is not None:
            values[self.source] = values[self.before] * values[self.source]
        rows, summed = values[self.source], np.zeros_like(values[self.source])

        def advance(token: int, before: Floats) -> Floats:
            window = np.concatenate([before, rows[token : token + 1]])
            summed[token] = (weight * window).sum(axis=0)
            return window[1:]

        context.walk(self.state, advance)
        out = summed if self.activation is None else ACTIVATIONS[self.activation](summed)
        values[self.out] = out if self.after is None else values[self.after] * out


OP = CausalConv
