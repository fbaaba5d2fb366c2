"""Row bookkeeping for a KV cache that only grows at its end and never changes a row.

Graph runtimes extend a cache by appending. Here each slot of the KV memory refers to the row last appended for it, and
a mask selects the rows a token sees. So draft trees, branches and several sequences need no moving of rows, and a
copied slot refers to the same row as its source. Rows that no slot refers to are dead until `compact` reports which
rows to keep. In: steps, copies. Out: row numbers and masks. Stores no keys or values.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from edgeinfer.graph.step import PAGE, Int32s, Step

Bools = NDArray[np.bool_]
Int64s = NDArray[np.int64]

NO_ROW = -1
SPARE_ROWS = 64
"""Dead rows that are always tolerated."""
SPARE_SHARE = 0.25
"""Further dead rows tolerated, as a share of the live ones."""


class CacheRows:
    """The rows of `n_slots` slots; at first no slot has one."""

    def __init__(self, n_slots: int) -> None:
        self._row_of = np.full(n_slots, NO_ROW, np.int64)
        self.n_slots, self.n_rows = n_slots, 0

    def rows(self, slots: NDArray[np.integer]) -> Int64s:
        """The row of each slot, NO_ROW for slots that were never written: int64[len(slots)]."""
        found: Int64s = self._row_of[slots]
        return found

    def append(self, slots: NDArray[np.integer]) -> None:
        """Assign newly appended rows to these slots, in order."""
        self._row_of[slots] = self.n_rows + np.arange(len(slots))
        self.n_rows += len(slots)

    def copy(self, sources: Int32s, targets: Int32s) -> None:
        """Let the target slots refer to the rows of the source slots."""
        self._row_of[targets] = self._row_of[sources]

    def forget(self, slots: NDArray[np.integer]) -> None:
        """Unassign the rows of these slots."""
        self._row_of[slots] = NO_ROW

    @property
    def n_live(self) -> int:
        """Number of rows that slots refer to."""
        return len(self._live())

    @property
    def is_crowded(self) -> bool:
        """Whether enough rows are dead for compaction to pay off."""
        n_live = self.n_live
        return self.n_rows - n_live > SPARE_ROWS + SPARE_SHARE * n_live

    def compact(self, slots: Iterable[int] | None = None) -> Int64s:
        """Drop dead rows (and all slots not listed). Returns the rows to keep, in order; they are renumbered from 0.

        int64[rows kept], increasing.
        """
        if slots is not None:
            kept = np.full_like(self._row_of, NO_ROW)
            chosen = np.fromiter(slots, np.int64)
            kept[chosen] = self._row_of[chosen]
            self._row_of = kept
        live = self._live()
        named = self._row_of >= 0
        self._row_of[named] = np.searchsorted(live, self._row_of[named])
        self.n_rows = len(live)
        return live

    def _live(self) -> Int64s:
        found = np.unique(self._row_of)
        live: Int64s = found[found >= 0]
        return live

    def visible(self, step: Step, window: int | None = None) -> Bools:
        """The mask of a step whose own rows are not yet appended: bool[T, n_rows + T].

        Column n_rows + t stands for token t of the step. `window` is as in `ops.Attention`.
        """
        batch = step.batch
        n_tokens, positions, parents = len(batch.tokens), batch.positions, batch.parents.tolist()
        seen = np.zeros((n_tokens, self.n_rows + n_tokens), np.bool_)
        own = seen[:, self.n_rows :]
        for token, parent in enumerate(parents):
            if parent >= 0:
                own[token, : token + 1] = own[parent, : token + 1]
            own[token, token] = True
        if window is not None:
            own &= positions[None, :] > positions[:, None] - window
        for row in np.unique(step.rows).tolist():
            tokens = np.flatnonzero(step.rows == row)
            self._see_cached(seen, step, row, tokens, window)
        return seen

    def _see_cached(self, seen: Bools, step: Step, row: int, tokens: Int64s, window: int | None) -> None:
        """Mark the rows that tokens of one sequence see through its page table."""
        starts, last = step.starts[tokens], int(step.starts[tokens].max())
        positions = np.arange(last)
        slots = step.tables[row].astype(np.int64)[positions // PAGE] * PAGE + positions % PAGE
        sees = positions[None, :] < starts[:, None]
        if window is not None:
            sees &= positions[None, :] > step.batch.positions[tokens][:, None] - window
        rows = self._row_of[slots]
        written = rows >= 0
        seen[tokens[:, None], rows[written][None, :]] = sees[:, written]
