"""Keys and values of a lane: which infer request holds which slots, the contents of its states, and their pages.

In: steps, slots, pages. Out: the request to run a step with, pages. A page stores layer after layer, keys before
values, each as [kv heads, PAGE, K]: float16, or float32 for layers with float32 states.

OpenVINO's attention over many new tokens is several times as fast with an empty cache. So a prompt that sees no cached
tokens runs on a request with empty states; requests of one model share its weights. Rows are moved when a step needs
those of two requests. Reading or changing states copies all of them, so steps do this only when the cache is crowded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from edgeinfer.backends.cache_rows import SPARE_ROWS, CacheRows
from edgeinfer.graph.step import PAGE, Floats, Int32s, Step


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


MOST_HOLDERS = 3
LONG_PASS = 64
"""Number of tokens from which a request with empty states is used."""


class States:
    """The requests of one compiled graph and the rows they hold."""

    def __init__(self, compiled: ov.CompiledModel, forms: Sequence[StateForm], n_slots: int) -> None:
        self._compiled, self._forms, self._n_slots = compiled, forms, n_slots
        self._holders = [Holder(compiled.create_infer_request(), forms, n_slots)]
        self._settled: tuple[bytes, Holder] | None = None  # tables of a single-token step, and the holder of their rows

    def holder_for(self, step: Step) -> Holder:
        """The holder to run a step with; it has all rows that the step sees."""
        is_long, sees_cached = len(step.slots) >= LONG_PASS, bool(step.starts.any())
        if not self._forms or (len(self._holders) == 1 and (sees_cached or not is_long)):
            return self._holders[0]
        if not sees_cached:
            return self._empty() if is_long else self._holders[0]
        tables = step.tables.tobytes() if len(step.slots) == 1 else b""
        if self._settled is not None and self._settled[0] == tables:
            return self._settled[1]
        chosen = self._gathered(_seen_slots(step))
        self._settled = (tables, chosen) if tables else None
        return chosen

    def appended(self, slots: NDArray[np.integer], chosen: Holder) -> None:
        """Record that a step appended rows for these slots to a holder."""
        if self._settled is not None and (len(slots) > 1 or self._settled[1] is not chosen):
            self._settled = None
        chosen.rows.append(slots)
        for holder in self._holders:
            if holder is not chosen:
                holder.rows.forget(slots)

    def copy(self, sources: Int32s, targets: Int32s) -> None:
        """Let the target slots refer to the rows of the source slots; nothing is moved."""
        self._settled = None
        for holder in self._holders:
            holder.rows.copy(sources, targets)

    def read(self, pages: Int32s) -> NDArray[np.uint8]:
        """Contents of pages: uint8[len(pages), page_bytes]; zeros where nothing was written."""
        slots = slots_of(pages)
        found = [holder.read(slots) for holder in self._holders]
        parts: list[NDArray[np.uint8]] = []
        for form, values in zip(self._forms, zip(*found, strict=True), strict=True):
            paged = sum(values[1:], values[0]).reshape(form.kv_heads, len(pages), PAGE, form.head_width)
            numbers = np.ascontiguousarray(paged.swapaxes(0, 1).astype(form.page_type))
            parts.append(numbers.reshape(len(pages), -1).view(np.uint8))
        return np.concatenate(parts, axis=1) if parts else np.zeros((len(pages), 0), np.uint8)

    def write(self, pages: Int32s, contents: NDArray[np.uint8]) -> None:
        """Restore what `read` returned."""
        values, start = [], 0
        for form in self._forms:
            bits = np.ascontiguousarray(contents[:, start : start + form.page_bytes]).view(form.page_type)
            paged = bits.reshape(len(pages), form.kv_heads, PAGE, form.head_width).swapaxes(0, 1)
            values.append(paged.reshape(form.kv_heads, -1, form.head_width).astype(np.float32))
            start += form.page_bytes
        slots, self._settled = slots_of(pages), None
        for holder in self._holders[1:]:
            holder.rows.forget(slots)
        self._holders[0].add(slots, values)

    def close(self) -> None:
        """Release the requests."""
        self._holders, self._settled = [], None

    def _empty(self) -> Holder:
        """A holder without rows, or the one with the fewest."""
        for holder in self._holders:
            if holder.rows.n_live == 0:
                holder.clear()
                return holder
        if len(self._holders) < MOST_HOLDERS:
            self._holders.append(Holder(self._compiled.create_infer_request(), self._forms, self._n_slots))
            return self._holders[-1]
        return min(self._holders, key=lambda holder: holder.rows.n_rows)

    def _gathered(self, seen: NDArray[np.int64]) -> Holder:
        """The holder with most rows of these slots, after moving the other holders' rows to it."""
        counts = [int((holder.rows.rows(seen) >= 0).sum()) for holder in self._holders]
        chosen = self._holders[int(np.argmax(counts))]
        for holder, count in zip(self._holders, counts, strict=True):
            if count and holder is not chosen:
                moved = seen[holder.rows.rows(seen) >= 0]
                chosen.add(moved, holder.read(moved))
                holder.rows.forget(moved)
        return chosen


def slots_of(pages: Int32s) -> NDArray[np.int64]:
    """The slots of pages, in order."""
    slots: NDArray[np.int64] = (pages.astype(np.int64)[:, None] * PAGE + np.arange(PAGE)).reshape(-1)
    return slots


def _seen_slots(step: Step) -> NDArray[np.int64]:
    """Slots of cached rows that any token of a step may see."""
    found = []
    for row in np.unique(step.rows).tolist():
        last = int(step.starts[step.rows == row].max())
        n_pages = -(-last // PAGE)
        found.append(slots_of(step.tables[row, :n_pages])[:last])
    return np.unique(np.concatenate(found)) if len(found) > 1 else found[0]
