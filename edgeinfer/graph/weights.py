"""Weights as ops name them: rows of a tensor of the file, in an order."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RopePermutation:
    """Row order of a projection whose rotary pairs are neighbours: even rows of each head first, then odd ones.

    Only the first `rotary_width` rows of each `head_width` rows move. With it every `Rope` is half-split ("NeoX").
    """

    head_width: int
    rotary_width: int


@dataclass(frozen=True, slots=True)
class Every:
    """`width` rows of each `step`, from the first row of a weight on: those of one of several parts that alternate."""

    width: int
    step: int


@dataclass(frozen=True, slots=True)
class Weight:
    """Rows `start:stop` of a tensor, each `columns` long (or elements of a 1-D one, with `columns` 1).

    A tensor of more dimensions is the rows of its last one: expert e of [E, F, D] is rows e * F to (e + 1) * F.
    `order`: which of these rows, and in which order, if not all as they are.
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
