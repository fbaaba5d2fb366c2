"""The row store: values that pass between parts of a model wait here, in host memory.

In: rows of named values, and row numbers of tokens. Out: the same rows, gathered in the requested order. One thread at
a time. Knows nothing of sequences.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
from numpy.typing import NDArray

from edgeinfer.graph.step import Floats

Int64s = NDArray[np.int64]

FIRST_ROWS = 64
"""Initial number of rows; doubled whenever it is too small."""


class RowStore:
    """One row of each value for every token in flight. `widths` of the values, by name."""

    def __init__(self, widths: Mapping[str, int]) -> None:
        self._values: dict[str, Floats] = {
            name: np.zeros((FIRST_ROWS, width), np.float32) for name, width in widths.items()
        }
        self._free = list(range(FIRST_ROWS - 1, -1, -1))
        self._n_rows = FIRST_ROWS

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in self._values.values())

    @property
    def n_taken(self) -> int:
        """Rows in use."""
        return self._n_rows - len(self._free)

    def take(self, n_rows: int) -> Int64s:
        """Allocate rows for this many tokens: int64[n_rows]."""
        while len(self._free) < n_rows:
            self._grow()
        return np.array([self._free.pop() for _ in range(n_rows)], np.int64)

    def give_back(self, rows: Int64s) -> None:
        """Free these rows."""
        self._free.extend(rows.tolist())

    def gather(self, names: Iterable[str], rows: Int64s) -> dict[str, Floats]:
        """Copies of rows: float32[len(rows), width] for each name."""
        return {name: self._values[name][rows] for name in names}

    def scatter(self, values: Mapping[str, Floats], rows: Int64s) -> None:
        """Write rows; values that are not stored here are ignored."""
        for name, found in values.items():
            if name in self._values:
                self._values[name][rows] = found

    def _grow(self) -> None:
        self._free.extend(range(2 * self._n_rows - 1, self._n_rows - 1, -1))
        for name, array in self._values.items():
            self._values[name] = np.concatenate([array, np.zeros_like(array)])
        self._n_rows *= 2
