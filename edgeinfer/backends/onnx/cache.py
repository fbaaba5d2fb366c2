"""Keys and values of a lane: arrays of rows, the row of each slot, and room for new rows.

In: steps, slots, pages. Out: where new rows go, and what each token sees, as numbers to add to scores. `CacheRows`
numbers the rows; a row of zeros that no token sees comes before them. Independent of graphs.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from edgeinfer.backends.cache_rows import CacheRows
from edgeinfer.backends.onnx.footprint import LEAD_ROWS, RowCounts
from edgeinfer.graph.operands import PagedKV
from edgeinfer.graph.step import PAGE, Floats, Int32s, Step

LOOK_EVERY = 64
"""Rows added before dead rows are counted again."""


class OnnxCache:
    """Rows of all layers. `grouped`: arrays are [1, G, rows, width], otherwise [rows, G, width]."""

    def __init__(self, layers: Sequence[PagedKV], sizes: RowCounts, *, grouped: bool) -> None:
        self._sizes, self._rows = sizes, CacheRows(sizes.n_slots)
        self.arrays: list[tuple[Floats, Floats]] = []
        self._by_row: list[Floats] = []
        for layer in layers:
            n_rows, groups = sizes.cache_rows, layer.kv_heads
            start = (1, groups, n_rows) if grouped else (n_rows, groups)
            pair = np.zeros((*start, layer.key_width), np.float32), np.zeros((*start, layer.value_width), np.float32)
            self.arrays.append(pair)
            self._by_row += [array[0].transpose(1, 0, 2) if grouped else array for array in pair]
        self._next_look = LOOK_EVERY

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for pair in self.arrays for array in pair)

    @property
    def n_cached(self) -> int:
        """Number of rows, including the one in front."""
        return LEAD_ROWS + self._rows.n_rows

    def make_room(self, n_tokens: int) -> None:
        """Make room for the rows of a pass; compact if dead rows are many or in the way."""
        rows = self._rows
        full = self.n_cached + n_tokens > self._sizes.cache_rows
        if full or (rows.n_rows >= self._next_look and rows.is_crowded):
            self._compact()
        if rows.n_rows >= self._next_look:
            self._next_look = rows.n_rows + LOOK_EVERY

    def _compact(self, dropped: Int32s | None = None) -> None:
        rows = self._rows
        kept = None
        if dropped is not None:
            every = np.ones(self._sizes.n_slots, np.bool_)
            every[dropped] = False
            kept = np.flatnonzero(every).tolist()
        live = rows.compact(kept)
        for array in self._by_row:
            array[LEAD_ROWS : LEAD_ROWS + len(live)] = array[LEAD_ROWS + live]
        self._next_look = rows.n_rows + LOOK_EVERY

    def write_mask(self, step: Step, window: int | None, mask: Floats) -> None:
        """Fill the first T * (rows + T) numbers of a flat array: 0 where a token sees a row, else minus infinity."""
        seen = self._rows.visible(step, window)
        n_tokens, n_rows = seen.shape
        filled = mask[: n_tokens * (LEAD_ROWS + n_rows)].reshape(n_tokens, LEAD_ROWS + n_rows)
        filled[:, :LEAD_ROWS] = -np.inf
        filled[:, LEAD_ROWS:] = np.where(seen, np.float32(0.0), np.float32(-np.inf))

    def append(self, slots: Int32s) -> None:
        """Assign the newly appended rows to these slots."""
        self._rows.append(slots)

    def copy_slots(self, sources: Int32s, targets: Int32s) -> None:
        """Let the target slots refer to the rows of the source slots."""
        self._rows.copy(sources, targets)

    def read_pages(self, pages: Int32s) -> NDArray[np.uint8]:
        """Contents of pages, zeros where nothing was written: uint8[len(pages), page_bytes]."""
        rows = self._rows.rows(_slots(pages))
        gathered = []
        for array in self._by_row:
            values = array[LEAD_ROWS + np.maximum(rows, 0)]
            values[rows < 0] = 0.0
            gathered.append(values.reshape(len(pages), -1))
        if not gathered:
            return np.zeros((len(pages), 0), np.uint8)
        return np.ascontiguousarray(np.concatenate(gathered, axis=1)).view(np.uint8)

    def write_pages(self, pages: Int32s, contents: NDArray[np.uint8]) -> None:
        """Restore the contents of pages, as new rows."""
        slots = _slots(pages)
        if self.n_cached + len(slots) > self._sizes.cache_rows:
            self._compact(slots)
        numbers = np.ascontiguousarray(contents).view(np.float32)
        first, column = self.n_cached, 0
        for array in self._by_row:
            width = PAGE * array[0].size
            values = numbers[:, column : column + width].reshape(len(slots), *array.shape[1:])
            array[first : first + len(slots)] = values
            column += width
        self._rows.append(slots)

    def close(self) -> None:
        """Free the arrays."""
        self.arrays, self._by_row = [], []


def _slots(pages: Int32s) -> Int32s:
    slots: Int32s = (pages[:, None] * PAGE + np.arange(PAGE, dtype=np.int32)).ravel().astype(np.int32)
    return slots
