"""The feed-forward networks of a mixture of experts, a few of which are active per token."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from edgeinfer.graph.activations import ACTIVATIONS, ExpertActivation, gated
from edgeinfer.graph.op import Access, Cost, MatMulCost, Op, OpContext
from edgeinfer.graph.operands import Weight
from edgeinfer.graph.ops.add_scaled import row_scales
from edgeinfer.graph.step import Floats

HIDDEN = "hidden of experts"
"""The name passed to rounding for the rows that down matrices multiply; they come expert by expert."""
LOW = "low rows of experts"
"""The name passed to rounding for the rows that B matrices of adapters multiply; they come expert by expert."""
Stack: TypeAlias = Literal["gate", "up", "down"]


@dataclass(frozen=True, slots=True)
class ExpertAdapter:
    """What a LoRA adapter adds to the products with one stack of matrices: scale * factor * B[e] @ (A[e] @ x).

    `lora_a` and `lora_b` are A and B of each expert. Scales are as in an AddScaled. For down matrices the sum over the
    experts, without scale and factor, is added to the buffer `out`, which an AddScaled then adds.
    """

    stack: Stack
    lora_a: tuple[Weight, ...]
    lora_b: tuple[Weight, ...]
    adapter: int
    factor: float
    scale: float
    out: str = ""


@dataclass(frozen=True, slots=True)
class Experts(Op):
    """out[t] += the sum over the active experts e of t, in increasing order, of share * expert e of source[t].

    An expert is down[e] @ (activation(gate[e] @ x) * (up[e] @ x)), or down[e] @ activation(up[e] @ x) if `gate` is
    empty. `shares` [T, E] come from a Router with the same `active`; experts with share zero are not computed. `biases`
    of all gate, up and down products, for experts with gates: float32[E * F], [E * F] and [E * D]. Activation
    swiglu_oai, for the same: clamped gate * sigmoid(1.702 gate) * (up + 1). With `scales_source`, for experts without
    biases, shares multiply what gate and up read, in place of the results (Llama 4). `adapters`: what LoRA adapters add
    to these products.
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
    adapters: tuple[ExpertAdapter, ...] = ()

    @property
    def accesses(self) -> tuple[tuple[Access, ...], tuple[Access, ...]]:
        source, shares = Access(self.source, self.up[0].columns), Access(self.shares, self.count)
        outs = tuple(Access(name, self.down[0].n_rows) for name in (self.out, *self.sums))
        return (source, shares, *outs), outs

    @property
    def sums(self) -> tuple[str, ...]:
        """The buffers to which products of adapters with down matrices are added."""
        return tuple(each.out for each in self.adapters if each.out)

    @property
    def count(self) -> int:
        """Number of experts."""
        return len(self.down)

    @property
    def stacks(self) -> tuple[tuple[Weight, ...], ...]:
        """The gate matrices, if there are any, the up matrices, and the down matrices of all experts."""
        return tuple(each for each in (self.gate, self.up, self.down) if each)

    @property
    def all_stacks(self) -> tuple[tuple[Weight, ...], ...]:
        """The same and the A and B matrices of adapters, each once."""
        if not self.adapters:
            return self.stacks
        adapted = (stack for each in self.adapters for stack in (each.lora_a, each.lora_b))
        return tuple(dict.fromkeys((*self.stacks, *adapted)))

    @property
    def matrices(self) -> tuple[Weight, ...]:
        return tuple(weight for stack in self.all_stacks for weight in stack)

    def without_adapters(self, unused: frozenset[int]) -> Experts:
        """The same without these LoRA adapters."""
        return replace(self, adapters=tuple(each for each in self.adapters if each.adapter not in unused))

    @property
    def vectors(self) -> tuple[Weight, ...]:
        return self.biases or ()

    @property
    def cost(self) -> Cost:
        """All experts have the size of the first."""
        products = tuple(MatMulCost(each[0], None, self.count, self.active) for each in self.all_stacks)
        return Cost(vectors=self.vectors, products=products, n_elements=self.active * self.up[0].n_rows)

    def evaluate(self, context: OpContext) -> None:
        """In increasing order of expert number."""
        source, shares = context.values[self.source], context.values[self.shares]
        readers = (*self.gate, *self.up, *(each.lora_a[0] for each in self.adapters if each.stack != "down"))
        rounds = any(context.rounds(weight) for weight in readers)
        rounded = context.rounded(self, self.source, source) if rounds else source
        rows = [np.flatnonzero(shares[:, expert]) for expert in range(shares.shape[1])]
        hidden = [self._hidden(context, expert, each, source, rounded, shares) for expert, each in enumerate(rows)]
        rounded_hidden = hidden
        if any(context.rounds(weight) for weight in (*self.down, *(each.lora_a[0] for each in self._adapting("down")))):
            joined = context.rounded(self, HIDDEN, np.concatenate(hidden))
            rounded_hidden = np.split(joined, np.cumsum([len(each) for each in hidden])[:-1])
        total, bias = np.zeros_like(source), self._bias(context, 2)
        context.values.update({name: context.values[name].copy() for name in self.sums})
        for expert, (weight, its_rows) in enumerate(zip(self.down, rows, strict=True)):
            read = (rounded_hidden if context.rounds(weight) else hidden)[expert]
            total[its_rows] += read @ context.matrix(weight).T
            if bias is not None:
                total[its_rows] += shares[its_rows, expert, None] * bias[expert]
            for each in self._adapting("down"):
                added = _added(self, each, context, expert, hidden[expert], rounded_hidden[expert], None)
                context.values[each.out][its_rows] += added
        context.values[self.out] = context.values[self.out] + total

    def _adapting(self, stack: Stack) -> Iterator[ExpertAdapter]:
        """The adapters of a stack of matrices."""
        return (each for each in self.adapters if each.stack == stack)

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
        products, batch = [], context.step.batch
        names: tuple[Stack, ...] = ("gate", "up") if self.gate else ("up",)
        for name, stack in zip(names, self.stacks[:-1], strict=True):
            product = (rounded if context.rounds(stack[expert]) else source)[rows] @ context.matrix(stack[expert]).T
            for each in self._adapting(name):
                scales = row_scales(batch, each.adapter, each.scale, len(source))[rows]
                factors = scales[:, None] * np.float32(each.factor)
                product += _added(self, each, context, expert, source[rows], rounded[rows], factors)
            products.append(product)
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


def _added(
    op: Experts,
    adapter: ExpertAdapter,
    context: OpContext,
    expert: int,
    source: Floats,
    rounded: Floats,
    factors: Floats | None,
) -> Floats:
    """B @ (factors * (A @ x)) of an expert for rows float32[n, columns of A]; factors float32[n, 1], None: ones."""
    lora_a, lora_b = adapter.lora_a[expert], adapter.lora_b[expert]
    low: Floats = (rounded if context.rounds(lora_a) else source) @ context.matrix(lora_a).T
    if factors is not None:
        low *= factors
        low[factors[:, 0] == 0] = 0.0
    low = context.rounded(op, LOW, low) if context.rounds(lora_b) else low
    added: Floats = low @ context.matrix(lora_b).T
    return added


OP = Experts
