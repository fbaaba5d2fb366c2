"""Heads concatenated from two parts."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from edgeinfer.graph.op import Access, Cost, Op, OpContext


@dataclass(frozen=True, slots=True)
class JoinHeads(Op):
    """Each head of `out` is a head of `first` followed by one of `second`.

    `second` has as many heads as `first`, or, if `shared`, a single one used for all. Needed for multi-head latent
    attention: the rotated part has its own projection, and all heads share the rotated part of the key (DeepSeek-V2,
    arXiv 2405.04434).
    """

    first: str
    second: str
    out: str
    heads: int
    first_width: int
    second_width: int
    shared: bool = False

    @property
    def width(self) -> int:
        """Width of a head of `out`."""
        return self.first_width + self.second_width

    @property
    def accesses(self) -> tuple[tuple[Access, ...], tuple[Access, ...]]:
        first = Access(self.first, self.heads * self.first_width)
        second = Access(self.second, self.second_width * (1 if self.shared else self.heads))
        return (first, second), (Access(self.out, self.heads * self.width),)

    @property
    def cost(self) -> Cost:
        return Cost(n_elements=self.heads * self.width)

    def evaluate(self, context: OpContext) -> None:
        first, second = context.values[self.first], context.values[self.second]
        first = first.reshape(len(first), self.heads, self.first_width)
        second = np.broadcast_to(
            second.reshape(len(second), -1, self.second_width), (*first.shape[:2], self.second_width)
        )
        context.values[self.out] = np.concatenate([first, second], axis=-1).reshape(len(first), -1)


OP = JoinHeads
