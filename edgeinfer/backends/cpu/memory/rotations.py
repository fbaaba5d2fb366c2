"""Cosines and sines of rotary positions, computed only as far as passes reach, as a long context would delay the start.

In: rotary tables, and how many positions are about to be used. Out: float32[n_context, rotary_width / 2] arrays that
stay in place, filled from the start on. If pairs turn by several axes, the rows after those serve tokens of the pass
whose axes differ: each pair's number comes from the row of its own position.
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
"""Positions computed at a time."""


class Rotations:
    """The tables of one model."""

    def __init__(self, file: GGUFFile, n_context: int, max_tokens: int) -> None:
        """`max_tokens`: most tokens of a pass."""
        self._file, self._n_context, self._max_tokens, self._n_made = file, n_context, max_tokens, 0
        self._tables: dict[RopeTable, tuple[Floats, Floats]] = {}
        self._sections: dict[RopeTable, RopeSections] = {}
        self._factors: dict[RopeTable, Floats | None] = {}

    @property
    def nbytes(self) -> int:
        """Bytes of all tables."""
        return sum(array.nbytes for pair in self._tables.values() for array in pair)

    def of(self, table: RopeTable, sections: RopeSections | None = None) -> tuple[Floats, Floats]:
        """Cosines and sines of a table. Request all tables before computing any position. Raises BadGGUF.

        `sections`: those of its pairs; the same for all ops with this table.
        """
        if table not in self._tables:
            factors = weights.rope_factors(self._file, table)
            rope.frequencies(table, factors)  # refuses at once a table that cannot be computed
            n_rows = self._n_context
            if sections is not None:
                self._sections[table] = sections
                n_rows += self._max_tokens
            shape = (n_rows, table.rotary_width // 2)
            self._tables[table] = aligned(shape, np.float32), aligned(shape, np.float32)
            self._factors[table] = factors
        return self._tables[table]

    def reach(self, n_positions: int) -> None:
        """Compute the positions before `n_positions`; after an interruption the next call computes what is missing."""
        if n_positions <= self._n_made:
            return
        first, end = self._n_made, min(self._n_context, -(-n_positions // AT_ONCE) * AT_ONCE)
        for table, (cosines, sines) in self._tables.items():
            cosines[first:end], sines[first:end] = rope.rotations(table, end, self._factors[table], first)
        self._n_made = end

    def rows_of(self, axes: Int32s) -> Int32s:
        """The table row for each token of a pass, int32[T], computed if necessary. `axes`: int32[T, 3]."""
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
