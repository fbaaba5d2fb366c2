"""Cosines and sines of rotary positions, made as far as passes have come: all of a long context would delay the start.

In: rotary tables, and how many positions are about to be used. Out: float32[n_context, rotary_width / 2] arrays that
stay where they are, filled from the start on. Where pairs turn by several axes, rows after those have what tokens of
the pass need whose axes differ: each pair's number from the row of its own position.
"""

from __future__ import annotations

import numpy as np

from edgeinfer.backends import weights
from edgeinfer.graph.rotary import RopeSections, RopeTable
from edgeinfer.graph.step import Floats, Int32s
from edgeinfer.jit.memory import aligned
from edgeinfer.models import rope
from edgeinfer.models.gguf import GGUFFile

AT_ONCE = 1024
"""Positions made at a time."""


class Rotations:
    """The tables of one model."""

    def __init__(self, file: GGUFFile, n_context: int, max_tokens: int) -> None:
        """`max_tokens`: of a pass."""
        self._file, self._n_context, self._max_tokens, self._n_made = file, n_context, max_tokens, 0
        self._tables: dict[RopeTable, tuple[Floats, Floats]] = {}
        self._sections: dict[RopeTable, RopeSections] = {}
        self._factors: dict[RopeTable, Floats | None] = {}

    @property
    def nbytes(self) -> int:
        """Bytes of all tables."""
        return sum(array.nbytes for pair in self._tables.values() for array in pair)

    def of(self, table: RopeTable, sections: RopeSections | None = None) -> tuple[Floats, Floats]:
        """Cosines and sines of a table. All tables must be asked for before any position is made. Raises BadGGUF.

        `sections`: of its pairs; the same for all ops with this table.
        """
        if table not in self._tables:
            factors = weights.rope_factors(self._file, table)
            rope.frequencies(table, factors)  # a table that cannot be made is refused now
            n_rows = self._n_context
            if sections is not None:
                self._sections[table] = sections
                n_rows += self._max_tokens
            shape = (n_rows, table.rotary_width // 2)
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

    def rows_of(self, axes: Int32s) -> Int32s:
        """The row of the tables that each token of a pass turns by, int32[T], made if need be. `axes`: int32[T, 3]."""
        self.reach(1 + int(axes.max()))
        rows = axes[:, 0].copy()
        differing = np.flatnonzero((axes != axes[:, :1]).any(axis=1))
        if len(differing):
            rows[differing] = self._n_context + np.arange(len(differing), dtype=np.int32)
            for table, sections in self._sections.items():
                positions, pairs = axes[differing][:, sections.axes()], np.arange(table.rotary_width // 2)
                for array in self._tables[table]:
                    array[self._n_context : self._n_context + len(differing)] = array[positions, pairs]
        return rows
