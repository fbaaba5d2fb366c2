"""One infer request and the keys and values in its states, accessed between steps.

In: rows. Out: rows. Reading or changing states copies all of them, so steps do this only when the cache is crowded.
Independent of pages.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from edgeinfer.backends.cache_rows import SPARE_ROWS, CacheRows
from edgeinfer.graph.step import PAGE, Floats


@dataclass(frozen=True, slots=True)
class StateForm:
    """One state: its name in the graph, its kv heads and their width; `is_float32`: pages keep all its bits."""

    name: str
    kv_heads: int
    head_width: int
    is_float32: bool

    @property
    def page_type(self) -> type[np.floating]:
        return np.float32 if self.is_float32 else np.float16

    @property
    def page_bytes(self) -> int:
        return self.kv_heads * PAGE * self.head_width * np.dtype(self.page_type).itemsize


class Holder:
    """An infer request with its own states, and the row of each slot."""

    def __init__(self, request: ov.InferRequest, forms: Sequence[StateForm], n_slots: int) -> None:
        self.request, self._forms = request, forms
        by_name = {state.name: state for state in request.query_state()} if forms else {}
        self._states = [by_name[form.name] for form in forms]
        self.rows = CacheRows(n_slots)
        self._look_at = SPARE_ROWS

    def make_room(self) -> None:
        """Drop rows that no slot refers to, if there are many."""
        if self.rows.n_rows < self._look_at:
            return
        if self.rows.n_live == 0:
            self.clear()
        elif self.rows.is_crowded:
            n_before = self.rows.n_rows
            self._keep(n_before, self.rows.compact(), None)
        self._look_at = self.rows.n_rows + SPARE_ROWS

    def clear(self) -> None:
        """Drop all rows."""
        if self.rows.n_rows:
            self.rows.compact(())
            self.request.reset_state()

    def read(self, slots: NDArray[np.integer]) -> list[Floats]:
        """Rows of slots, per state: float32[kv heads, len(slots), K]; zeros for slots without rows."""
        places = self.rows.rows(slots)
        written = places >= 0
        found = [np.zeros((form.kv_heads, len(slots), form.head_width), np.float32) for form in self._forms]
        if written.any():
            for values, state in zip(found, self._states, strict=True):
                values[:, written] = _contents(state)[0][:, places[written]]
        return found

    def add(self, slots: NDArray[np.integer], values: Sequence[Floats]) -> None:
        """Store rows for slots, per state, as `read` returned them; the slots' earlier rows are dropped."""
        self.rows.forget(slots)
        n_before = self.rows.n_rows
        self._keep(n_before, self.rows.compact(), values)
        self.rows.append(slots)

    def _keep(self, n_before: int, kept: NDArray[np.integer], values: Sequence[Floats] | None) -> None:
        """Keep these rows of all states, and append others."""
        for number, (state, form) in enumerate(zip(self._states, self._forms, strict=True)):
            rows = np.zeros((1, form.kv_heads, 0, form.head_width), np.float32)
            if n_before:
                rows = _contents(state)[:, :, kept]
            if values is not None:
                rows = np.concatenate([rows, values[number][None]], axis=2)
            state.state = ov.Tensor(np.ascontiguousarray(rows, np.float32))


def _contents(state: ov.VariableState) -> Floats:
    """A state's rows: float32[1, kv heads, rows, K]."""
    found: Floats = np.asarray(state.state.data, np.float32)
    return found
