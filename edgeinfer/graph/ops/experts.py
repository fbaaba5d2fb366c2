"""The feed-forward networks of a mixture of experts, a few of which are active per token."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgeinfer.graph.activations import ExpertActivation, gated
from edgeinfer.graph.op import Access, Cost, MatMulCost, Op, OpContext
from edgeinfer.graph.operands import Weight
from edgeinfer.graph.step import Floats

HIDDEN = "hidden of experts"
"""The name passed to rounding for the rows that down matrices multiply; they come expert by expert."""


@dataclass(frozen=True, slots=True)
class Experts(Op):
    """out[t] += the sum over the active experts e of t, in increasing order, of share * expert e of source[t].

    An expert is down[e] @ (activation(gate[e] @ x) * (up[e] @ x)). `shares` [T, E] come from a Router with the same
    `active`; experts with share zero are not computed. `biases` of all gate, up and down products: float32[E * F], [E *
    F] and [E * D]. Activation swiglu_oai: clamped gate * sigmoid(1.702 gate) * (up + 1).
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

    @property
    def accesses(self) -> tuple[tuple[Access, ...], tuple[Access, ...]]:
        source, shares = Access(self.source, self.gate[0].columns), Access(self.shares, len(self.gate))
        out = Access(self.out, self.down[0].n_rows)
        return (source, shares, out), (out,)

    @property
    def matrices(self) -> tuple[Weight, ...]:
        return (*self.gate, *self.up, *self.down)

    @property
    def vectors(self) -> tuple[Weight, ...]:
        return self.biases or ()

    @property
    def cost(self) -> Cost:
        """All experts have the size of the first."""
        count, active = len(self.gate), self.active
        products = tuple(MatMulCost(each[0], None, count, active) for each in (self.gate, self.up, self.down))
        return Cost(vectors=self.vectors, products=products, n_elements=active * self.gate[0].n_rows)

    def evaluate(self, context: OpContext) -> None:
        """In increasing order of expert number."""
        source, shares = context.values[self.source], context.values[self.shares]
        rounds = any(context.rounds(weight) for weight in self.gate + self.up)
        rounded = context.rounded(self, self.source, source) if rounds else source
        rows = [np.flatnonzero(shares[:, expert]) for expert in range(shares.shape[1])]
        hidden = [
            self._hidden(context, expert, each, source, rounded) * shares[each, expert, None]
            for expert, each in enumerate(rows)
        ]
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
        self, context: OpContext, expert: int, rows: NDArray[np.int64], source: Floats, rounded: Floats
    ) -> Floats:
        """activation(gate) * up of one expert, for its rows: float32[n, F]."""
        gate, up = (
            (rounded if context.rounds(weight) else source)[rows] @ context.matrix(weight).T
            for weight in (self.gate[expert], self.up[expert])
        )
        gate_bias, up_bias = self._bias(context, 0), self._bias(context, 1)
        if gate_bias is not None and up_bias is not None:
            gate, up = gate + gate_bias[expert], up + up_bias[expert]
        return gated(self.activation, gate, up)

    def _bias(self, context: OpContext, place: int) -> Floats | None:
        """One of the three biases, as float32[E, F or D]."""
        return None if self.biases is None else context.vector(self.biases[place]).reshape(len(self.gate), -1)


OP = Experts
