"""The feed-forward networks of a mixture of experts, a few of which are active per token."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgeinfer.graph.activations import ACTIVATIONS, ExpertActivation, gated
from edgeinfer.graph.op import Access, Cost, MatMulCost, Op, OpContext
from edgeinfer.graph.operands import Weight
from edgeinfer.graph.step import Floats

HIDDEN = "hidden of experts"
"""The name passed to rounding for the rows that down matrices multiply; they come expert by expert."""


@dataclass(frozen=True, slots=True)
class Experts(Op):
    """out[t] += the sum over the active experts e of t, in increasing order, of share * expert e of source[t].

    An expert is down[e] @ (activation(gate[e] @ x) * (up[e] @ x)), or down[e] @ activation(up[e] @ x) if `gate` is
    empty. `shares` [T, E] come from a Router with the same `active`; experts with share zero are not computed. `biases`
    of all gate, up and down products, for experts with gates: float32[E * F], [E * F] and [E * D]. Activation
    swiglu_oai, for the same: clamped gate * sigmoid(1.702 gate) * (up + 1). With `scales_source`, for experts without
    biases, shares multiply what gate and up read, in place of the results (Llama 4).
    """

    source: str
    shares: str
    out: str
    gate: tuple[Weight, ...]
    up: tuple[Weight, ...]
    down: tuple[Weight, ...]
    active: int
    activation: ExpertActivation = "silu"
    biases: tuple[Weight, Weight, Weight] | None = None
    scales_source: bool = False

    @property
    def accesses(self) -> tuple[tuple[Access, ...], tuple[Access, ...]]:
        source, shares = Access(self.source, self.up[0].columns), Access(self.shares, self.count)
        out = Access(self.out, self.down[0].n_rows)
        return (source, shares, out), (out,)

    @property
    def count(self) -> int:
        """Number of experts."""
        return len(self.down)

    @property
    def stacks(self) -> tuple[tuple[Weight, ...], ...]:
        """The gate matrices, if there are any, the up matrices, and the down matrices of all experts."""
        return tuple(each for each in (self.gate, self.up, self.down) if each)

    @property
    def matrices(self) -> tuple[Weight, ...]:
        return (*self.gate, *self.up, *self.down)

    @property
    def vectors(self) -> tuple[Weight, ...]:
        return self.biases or ()

    @property
    def cost(self) -> Cost:
        """All experts have the size of the first."""
        products = tuple(MatMulCost(each[0], None, self.count, self.active) for each in self.stacks)
        return Cost(vectors=self.vectors, products=products, n_elements=self.active * self.up[0].n_rows)

    def evaluate(self, context: OpContext) -> None:
        """In increasing order of expert number."""
        source, shares = context.values[self.source], context.values[self.shares]
        rounds = any(context.rounds(weight) for weight in self.gate + self.up)
        rounded = context.rounded(self, self.source, source) if rounds else source
        rows = [np.flatnonzero(shares[:, expert]) for expert in range(shares.shape[1])]
        hidden = [self._hidden(context, expert, each, source, rounded, shares) for expert, each in enumerate(rows)]
        if any(context.rounds(weight) for weight in self.down):
            joined = context.rounded(self, HIDDEN, np.concatenate(hidden))
            hidden = np.split(joined, np.cumsum([len(each) for each in hidden])[:-1])
        total, bias = np.zeros_like(source), self._bias(context, 2)
        for expert, (weight, each, its_rows) in enumerate(zip(self.down, hidden, rows, strict=True)):
            total[its_rows] += each @ context.matrix(weight).T
            if bias is not None:
                total[its_rows] += shares[its_rows, expert, None] * bias[expert]
        context.values[self.out] = context.values[self.out] + total

    def _hidden(
        self,
        context: OpContext,
        expert: int,
        rows: NDArray[np.int64],
        source: Floats,
        rounded: Floats,
        shares: Floats,
    ) -> Floats:
        """The hidden rows of one expert with their shares: float32[n, F]."""
        products = [
            (rounded if context.rounds(each[expert]) else source)[rows] @ context.matrix(each[expert]).T
            for each in self.stacks[:-1]
        ]
        share = shares[rows, expert, None]
        if self.scales_source:
            return self._activated(context, expert, [product * share for product in products])
        return self._activated(context, expert, products) * share

    def _activated(self, context: OpContext, expert: int, products: list[Floats]) -> Floats:
        """activation(gate) * up, or activation(up), of one expert: float32[n, F]."""
        if not self.gate:
            assert self.activation != "swiglu_oai"
            return ACTIVATIONS[self.activation](products[0])
        gate, up = products
        gate_bias, up_bias = self._bias(context, 0), self._bias(context, 1)
        if gate_bias is not None and up_bias is not None:
            gate, up = gate + gate_bias[expert], up + up_bias[expert]
        return gated(self.activation, gate, up)

    def _bias(self, context: OpContext, place: int) -> Floats | None:
        """One of the three biases, as float32[E, F or D]."""
        return None if self.biases is None else context.vector(self.biases[place]).reshape(self.count, -1)


OP = Experts
