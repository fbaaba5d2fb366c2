"""The keys and values of a graph's state, outside of steps: pages in and out, copies, rows that are no longer needed.

In: slots, pages. Out: pages. Reading or changing a state copies all of it, so steps never come here unless the cache
is crowded. A page holds layer after layer, keys before values, each as [kv heads, PAGE, K]: float16, or float32 for
layers whose state is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from edgeinfer.backends.base import PAGE, Floats, Int32s
from edgeinfer.backends.cache_rows import SPARE_ROWS, CacheRows


@dataclass(frozen=True, slots=True)
class StateForm:
    """One state: its name in the graph, and its kv heads and their width; `is_float32`: pages keep all its bits."""

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


class States:
    """The states of one infer request, and which of their rows are whose."""

    def __init__(self, request: ov.InferRequest, forms: Sequence[StateForm], n_slots: int) -> None:
        by_name = {state.name: state for state in request.query_state()} if forms else {}
        self._held = [(by_name[form.name], form) for form in forms]
        self.rows = CacheRows(n_slots)
        self._look_at = SPARE_ROWS

    def make_room(self) -> None:
        """Drop rows that nothing names, if there are many."""
        if self.rows.n_rows < self._look_at:
            return
        if self.rows.is_crowded:
            n_before = self.rows.n_rows
            self._replace(n_before, self.rows.compact(), None)
        self._look_at = self.rows.n_rows + SPARE_ROWS

    def read(self, pages: Int32s) -> NDArray[np.uint8]:
        """uint8[len(pages), page_bytes]; zeros where nothing was written."""
        places = self.rows.rows(slots_of(pages))
        written = places >= 0
        parts: list[NDArray[np.uint8]] = []
        for state, form in self._held:
            found = np.zeros((form.kv_heads, len(places), form.head_width), np.float32)
            if written.any():
                found[:, written] = _contents(state)[0][:, places[written]]
            paged = found.reshape(form.kv_heads, len(pages), PAGE, form.head_width).swapaxes(0, 1)
            parts.append(np.ascontiguousarray(paged.astype(form.page_type)).reshape(len(pages), -1).view(np.uint8))
        return np.concatenate(parts, axis=1) if parts else np.zeros((len(pages), 0), np.uint8)

    def write(self, pages: Int32s, contents: NDArray[np.uint8]) -> None:
        """Put back what `read` gave."""
        slots = slots_of(pages)
        others = np.setdiff1d(np.arange(self.rows.n_slots), slots)
        n_before = self.rows.n_rows
        self._replace(n_before, self.rows.compact(others), contents)
        self.rows.append(slots)

    def close(self) -> None:
        """Let go of the states."""
        self._held = []

    def _replace(self, n_before: int, kept: NDArray[np.integer], contents: NDArray[np.uint8] | None) -> None:
        """Keep these rows of all states, followed by those of pages, if any are given."""
        start = 0
        for state, form in self._held:
            old = _contents(state)[:, :, kept] if n_before else np.zeros((1, form.kv_heads, 0, form.head_width))
            if contents is not None:
                bits = np.ascontiguousarray(contents[:, start : start + form.page_bytes]).view(form.page_type)
                paged = bits.reshape(len(contents), form.kv_heads, PAGE, form.head_width).swapaxes(0, 1)
                added = paged.reshape(1, form.kv_heads, -1, form.head_width).astype(np.float32)
                old = np.concatenate([old, added], axis=2)
                start += form.page_bytes
            state.state = ov.Tensor(np.ascontiguousarray(old, np.float32))


def slots_of(pages: Int32s) -> NDArray[np.int64]:
    """The slots of pages, in order."""
    slots: NDArray[np.int64] = (pages.astype(np.int64)[:, None] * PAGE + np.arange(PAGE)).reshape(-1)
    return slots


def _contents(state: ov.VariableState) -> Floats:
    """A state's rows: float32[1, kv heads, rows, K]."""
    found: Floats = np.asarray(state.state.data, np.float32)
    return found
