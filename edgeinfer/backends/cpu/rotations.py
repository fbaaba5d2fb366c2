"""Cosines and sines of rotary positions, made as far as passes have come: all of a long context would delay the start.

In: rotary tables, and how many positions are about to be used. Out: float32[n_context, rotary_width / 2] arrays that
stay where they are, filled from the start on.
"""

from __future__ import annotations

import numpy as np

from edgeinfer.backends import weights
from edgeinfer.backends.cpu.memory import aligned
from edgeinfer.graph.ops.rope import RopeTable
from edgeinfer.graph.step import Floats
from edgeinfer.models import rope
from edgeinfer.models.gguf import GGUFFile

AT_ONCE = 1024
"""Positions made at a time."""


class Rotations:
    """The tables of one model."""

    def __init__(self, file: GGUFFile, n_context: int) -> None:
        self._file, self._n_context, self._n_made = file, n_context, 0
        self._tables: dict[RopeTable, tuple[Floats, Floats]] = {}
        self._factors: dict[RopeTable, Floats | None] = {}

    @property
    def nbytes(self) -> int:
        """Bytes of all tables."""
        return sum(array.nbytes for pair in self._tables.values() for array in pair)

    def of(self, table: RopeTable) -> tuple[Floats, Floats]:
        """Cosines and sines of a table. All tables must be asked for before any position is made. Raises BadGGUF."""
        if table not in self._tables:
            factors = weights.rope_factors(self._file, table)
            rope.frequencies(table, factors)  # a table that cannot be made is refused now
            shape = (self._n_context, table.rotary_width // 2)
            self._tables[table] = aligned(shape, np.float32), aligned(shape, np.float32)
            self._factors[table] = factors
        return self._tables[table]

    def reach(self, n_positions: int) -> None:
        """Have the positions before `n_positions`; what interrupts this leaves them to be made the next time."""
        if n_positions <= self._n_made:
            return
        first, end = self._n_made, min(self._n_context, -(-n_positions // AT_ONCE) * AT_ONCE)
        for table, (cosines, sines) in self._tables.items():
            cosines[first:end], sines[first:end] = rope.rotations(table, end, self._factors[table], first)
        self._n_made = end
