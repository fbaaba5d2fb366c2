"""Weights as ops refer to them: rows of a tensor in the file, in a given order."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RopePermutation:
    """Row order of a projection whose rotary pairs are adjacent: even rows of each head first, then odd ones.

    Only the first `rotary_width` rows of each `head_width` rows move. After it every `Rope` is half-split ("NeoX").
    """

    head_width: int
    rotary_width: int


@dataclass(frozen=True, slots=True)
class Every:
    """`width` rows out of each `step`, from a weight's first row on: one of several interleaved parts."""

    width: int
    step: int


@dataclass(frozen=True, slots=True)
class Weight:
    """Rows `start:stop` of a tensor, each `columns` long (or elements of a 1-D tensor, with `columns` 1).

    A tensor with more dimensions is viewed as rows of its last one: expert e of [E, F, D] is rows e * F to (e + 1) * F.
    `order` selects and orders these rows; None keeps them as they are.
    """

    tensor: str
    start: int
    stop: int
    columns: int
    order: RopePermutation | Every | None = None

    @property
    def n_rows(self) -> int:
        n_rows = self.stop - self.start
        return -(-n_rows // self.order.step) * self.order.width if isinstance(self.order, Every) else n_rows
