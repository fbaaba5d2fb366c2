"""Weights as ops name them: rows of a tensor of the file, in an order."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Unpair:
    """Row order of a projection whose rotary pairs are neighbours: even rows of each head first, then odd ones.

    Only the first `rotary_width` rows of each `head_width` rows move. With it every `Rope` is half-split ("NeoX").
    """

    head_width: int
    rotary_width: int


@dataclass(frozen=True, slots=True)
class Weight:
    """Rows `start:stop` of a tensor, each `columns` long (or elements of a 1-D one, with `columns` 1).

    A tensor of more dimensions is the rows of its last one: expert e of [E, F, D] is rows e * F to (e + 1) * F.
    """

    tensor: str
    start: int
    stop: int
    columns: int
    unpair: Unpair | None = None

    @property
    def n_rows(self) -> int:
        return self.stop - self.start
