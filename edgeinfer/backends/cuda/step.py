"""The step record in GPU memory: the pass's tokens, slots, page tables and paths.

In: a `base.Step`. Out: one int32 array, sent in one copy from pinned memory, and the numbers that kernels are launched
with. A token whose context is stored where its sequence's table says needs no path; other tokens, in draft trees, list
one slot for each position from their start on. Layers with a window have their own slots, tables and paths.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgeinfer.backends.base import Limits
from edgeinfer.backends.cuda.driver import Driver, GpuArray, Stream
from edgeinfer.backends.cuda.layout import GpuBufferLayout
from edgeinfer.graph.step import PAGE, Int32s, Step


@dataclass(frozen=True, slots=True)
class LaunchShape:
    """What launches depend on: tokens and outputs of a pass, and a bound for the chunks of its longest context."""

    tokens: int
    outputs: int
    chunks: int


class GpuStepRecord:
    """Owns the array on both sides."""

    def __init__(self, driver: Driver, layout: GpuBufferLayout, limits: Limits, places: Int32s) -> None:
        """`places`: the page of each KV memory page in layers with a window, if there are any."""
        self._places, self._has_windows = places, limits.windows is not None
        n_tokens = limits.max_tokens
        self.tokens_at, self.positions_at, self.slots_at = 0, n_tokens, 2 * n_tokens
        self.rows_at, self.starts_at, self.paths_at = 3 * n_tokens, 4 * n_tokens, 5 * n_tokens
        self.outputs_at = 6 * n_tokens
        self.window_slots_at = layout.window_step_at
        self.window_paths_at, self.window_tables_at = (self.window_slots_at + n * n_tokens for n in (1, 2))
        self.tables_at = layout.step_header
        self.table_width = layout.n_chunks
        self.array: GpuArray = driver.zeros(layout.step_ints, np.int32)
        self._host: Int32s = driver.pinned(layout.step_ints, np.int32).astype(np.int32, copy=False)

    @property
    def nbytes(self) -> int:
        return self.array.nbytes

    def fill(self, step: Step, stream: Stream) -> LaunchShape:
        """Take over a step and send it."""
        batch, host = step.batch, self._host
        n_tokens, n_outputs = len(batch.tokens), len(batch.outputs)
        used, rows = np.unique(step.rows, return_inverse=True)
        direct = direct_tokens(step)
        parts: dict[int, NDArray[np.generic]] = {
            self.tokens_at: batch.tokens,
            self.positions_at: batch.positions,
            self.slots_at: step.slots,
            self.rows_at: rows,
            self.starts_at: np.where(direct, batch.positions + 1, step.starts),
            self.outputs_at: batch.outputs,
        }
        for at, numbers in parts.items():
            host[at : at + len(numbers)] = numbers
        end = self._write_reached(step, step.slots, step.tables[used], direct, self.paths_at, self.tables_at)
        self.array[:end].copy_to_device(host[:end], stream=stream)
        if self._has_windows:
            start = self.window_slots_at
            slots, tables = located(self._places, step.slots), self._places[np.maximum(step.tables[used], 0)]
            host[start : start + n_tokens] = slots
            end = self._write_reached(step, slots, tables, direct, self.window_paths_at, self.window_tables_at)
            self.array[start:end].copy_to_device(host[start:end], stream=stream)
        return LaunchShape(n_tokens, n_outputs, chunk_bound(int(batch.positions.max()), self.table_width))

    def _write_reached(
        self, step: Step, slots: Int32s, tables: Int32s, direct: list[bool], paths_at: int, tables_at: int
    ) -> int:
        """Tables int32[rows, pages], and paths of the tokens in these slots; returns where they end."""
        host, end = self._host, tables_at + len(tables) * self.table_width
        width = min(self.table_width, tables.shape[1])
        host[tables_at:end].reshape(len(tables), -1)[:, :width] = tables[:, :width]
        host[paths_at : paths_at + len(slots)], end = self._write_paths(step, slots.tolist(), direct, end)
        return end

    def _write_paths(self, step: Step, slots: list[int], direct: list[bool], end: int) -> tuple[list[int], int]:
        """Slots of ancestors in the batch, and own slots, of tokens that need a path: where each path begins."""
        parents = step.batch.parents.tolist()
        found: list[list[int]] = []
        begins: list[int] = []
        for token, parent in enumerate(parents):
            found.append([*(found[parent] if parent >= 0 and not all(direct) else ()), slots[token]])
            begins.append(end)
            if not direct[token]:
                self._host[end : end + len(found[token])] = found[token]
                end += len(found[token])
        return begins, end


def chunk_bound(last: int, most: int) -> int:
    """Chunks to launch blocks for, up to position `last`: a power of two, so that few distinct values occur."""
    needed = last // PAGE + 1
    return min(most, 1 << (needed - 1).bit_length())


def direct_tokens(step: Step) -> list[bool]:
    """Which tokens are stored, like all their ancestors in the batch, where their sequence's table says."""
    positions = step.batch.positions
    pages = step.tables[step.rows, positions // PAGE].astype(np.int64)
    own = (pages * PAGE + positions % PAGE == step.slots).tolist()
    found: list[bool] = []
    for is_own, parent in zip(own, step.batch.parents.tolist(), strict=True):
        found.append(is_own and (parent < 0 or found[parent]))
    return found


def located(places: Int32s, slots: Int32s) -> Int32s:
    """Slots of the KV memory as stored in layers with a window."""
    found: Int32s = places[slots // PAGE] * PAGE + slots % PAGE
    return found
