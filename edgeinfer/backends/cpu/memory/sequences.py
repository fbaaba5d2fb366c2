"""What a lane stores of its sequences: KV pages of all layers, those of layers that keep only a window, and states.

In: what layers keep, limits, steps. Out: pools by layer, contents of pages and slots, and the record through which
kernels find the states of a pass. Memory: a layer's states float32[n_slots + 1, rows, padded], the last slot always
zeros; kept numbers of tokens that are not settled, float32[max_outputs, padded token_width] by layer. The engine
decides what each page and slot holds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from copy import copy

import numpy as np
from numpy.typing import NDArray

from edgeinfer.backends.base import Limits
from edgeinfer.backends.cpu.layout.padding import padded
from edgeinfer.backends.cpu.layout.pages import KVPool, PageLayout, pools_of, read_pages, write_pages
from edgeinfer.backends.cpu.layout.step_records import ROW_INTS, SAVE_INTS, STATE_STEP
from edgeinfer.backends.cpu.layout.summaries import summaries_of, summary_bytes
from edgeinfer.backends.cpu.memory.filed_pages import FiledPages, kv_file_bytes
from edgeinfer.graph.graph import ModelSpec
from edgeinfer.graph.operands import LayerState, PagedKV
from edgeinfer.graph.step import PAGE, Floats, Int32s, Step
from edgeinfer.jit.memory import address, aligned, give_back

N_SET = (STATE_STEP.names or ()).index("parents") + 1
"""Fields of STATE_STEP that every pass sets: the first ones."""


class CpuWindows:
    """The pages of layers that keep only a window."""

    def __init__(self, pools: Sequence[KVPool], places: Int32s) -> None:
        """`places`: the page places that all these layers use and kernels read."""
        self._pools, self._places = pools, places

    @property
    def page_bytes(self) -> int:
        """Bytes of a page."""
        return int(read_pages(self._pools, np.zeros(1, np.int32)).shape[1])

    def assign(self, pages: Int32s, places: Int32s) -> None:
        """Set the places of these pages."""
        self._places[pages] = places

    def read(self, pages: Int32s) -> NDArray[np.uint8]:
        """Contents of pages that have a place: uint8[len(pages), page_bytes]."""
        return read_pages(self._pools, pages)

    def write(self, pages: Int32s, contents: NDArray[np.uint8]) -> None:
        """Restore contents from `read`."""
        write_pages(self._pools, pages, contents)


class CpuKV:
    """Pools by layer. `windows`: None if every layer keeps everything."""

    def __init__(self, layers: Sequence[PagedKV], limits: Limits, *, huge: bool = True) -> None:
        """`huge`: on huge pages."""
        kept = limits.windows
        self.limited = limited = [kept is not None and kept.limit(layer) for layer in layers]
        everywhere, places = np.arange(limits.n_pages, dtype=np.int32), np.zeros(limits.n_pages, np.int32)
        n_kept = 0 if kept is None else kept.n_pages
        layouts, heads = [PageLayout.of(limits.kv, kv) for kv in layers], [kv.kv_heads for kv in layers]
        self.filed: FiledPages | None = None
        groups = {}
        for is_limited, n_pages, where in ((False, limits.n_pages, everywhere), (True, n_kept, places)):
            own = [number for number, each in enumerate(limited) if each is is_limited]
            parts = [layouts[number] for number in own], [heads[number] for number in own]
            if not is_limited and kv_file_bytes(layers, limits):
                self.filed = FiledPages(*parts, limits, where)
                pools = list(self.filed.pools)
            else:
                pools = pools_of(*parts, n_pages, where, huge=huge)
            groups[is_limited] = dict(zip(own, pools, strict=True))
        self.pools = [groups[each][number] for number, each in enumerate(limited)]
        self._whole = list(groups[False].values())
        self.summaries = summaries_of(layers, limits)
        self.windows = CpuWindows(list(groups[True].values()), places) if groups[True] else None
        self._is_lent = False

    @property
    def nbytes(self) -> int:
        """Bytes in memory of pages and their summaries; those of lent ones count where they come from."""
        summaries = sum(own.nbytes for own in self.summaries if own is not None)
        pools = sum(pool.nbytes for pool in self.pools)
        if self.filed is not None:
            pools += self.filed.resident_bytes - sum(pool.nbytes for pool in self._whole)
        return 0 if self._is_lent else pools + summaries

    def number_in_file(self, layer: int) -> int | None:
        """The place of a layer among those of `filed`; None if its keys and values are in memory."""
        is_filed = self.filed is not None and not self.limited[layer]
        return layer - sum(self.limited[:layer]) if is_filed else None

    def lent(self) -> CpuKV:
        """The same pools for a lane that reads them, which stay in memory until both are closed."""
        twin = copy(self)
        twin.pools, twin._whole, twin.windows, twin._is_lent = list(self.pools), [], None, True
        twin.summaries = list(self.summaries)
        return twin

    def give_back(self) -> None:
        """Give the memory of pages back to the system until they are written again; nothing may be cached."""
        for pool in self.pools:
            for bank in (*pool.keys, *pool.values):
                give_back(bank.reshape(-1))

    def close(self) -> None:
        """Free the memory."""
        self.pools.clear()
        self.summaries.clear()
        self._whole.clear()
        self.windows = None
        if self.filed is not None and not self._is_lent:
            self.filed.close()
        self.filed = None

    def read(self, pages: Int32s) -> NDArray[np.uint8]:
        """Contents of pages of layers that keep everything: uint8[len(pages), page_bytes]."""
        if self.filed is None or not len(pages):
            return read_pages(self._whole, pages)
        return np.concatenate([read_pages(self._whole, pages[part]) for part in self.filed.in_groups(pages)])

    def write(self, pages: Int32s, contents: NDArray[np.uint8]) -> None:
        """Restore contents from `read`."""
        if self.filed is None:
            write_pages(self._whole, pages, contents)
            return
        for part in self.filed.in_groups(pages):
            write_pages(self._whole, pages[part], contents[part])


def kv_bytes(layers: Sequence[PagedKV], limits: Limits) -> tuple[int, int, int]:
    """Bytes of pages and summaries: all, those of layers that keep only a window, and per further token of context."""
    per_token = {True: 0, False: 0}
    per_page = sum(summary_bytes(layer, limits) for layer in layers)
    for layer in layers:
        is_limited = limits.windows is not None and limits.windows.limit(layer)
        per_token[is_limited] += layer.kv_heads * PageLayout.of(limits.kv, layer).position_bytes
    n_kept = 0 if limits.windows is None else limits.windows.n_pages
    in_windows = per_token[True] * PAGE * n_kept
    in_file = kv_file_bytes(layers, limits)
    if in_file:
        return in_windows + limits.kv_ram + per_page * limits.n_pages, in_windows, -(-per_page // PAGE)
    everywhere = (per_token[False] * PAGE + per_page) * limits.n_pages
    return in_windows + everywhere, in_windows, per_token[False] + -(-per_page // PAGE)


def layer_shape(layer: LayerState) -> tuple[int, int]:
    """Rows and padded columns of a layer's state."""
    return math.prod(layer.shape[:-1]), padded(layer.shape[-1])


def slot_bytes(spec: ModelSpec) -> int:
    """Bytes of one slot."""
    return sum(4 * math.prod(layer_shape(layer)) for layer in spec.states)


def states_bytes(spec: ModelSpec, limits: Limits) -> int:
    """Bytes of all slots and of the kept tokens."""
    slots = (limits.state_slots(spec.states) + 1) * slot_bytes(spec)
    return slots + sum(4 * limits.max_outputs * padded(layer.token_width) for layer in spec.states)


class CpuStates:
    """The states of one model. `run`: the worker pool advances a slot by tokens of the last pass, as `record` says."""

    def __init__(self, spec: ModelSpec, limits: Limits) -> None:
        self.n_slots = limits.state_slots(spec.states)
        self._max_kept = limits.max_outputs
        self.layers: list[Floats] = [
            aligned((self.n_slots + 1, *layer_shape(layer)), np.float32) for layer in spec.states
        ]
        self.kept: list[Floats] = [
            aligned((limits.max_outputs, padded(layer.token_width)), np.float32) for layer in spec.states
        ]
        self.record = np.zeros(1, STATE_STEP)
        self._numbers = self.record.view(np.int64)
        self.run: Callable[[], None] | None = None
        self._rows: Int32s = np.zeros((1, ROW_INTS), np.int32)
        self._saves: Int32s = np.zeros((1, SAVE_INTS), np.int32)
        self._parents: Int32s = np.zeros(1, np.int32)
        self._nodes: Int32s = np.zeros(1, np.int32)

    @property
    def nbytes(self) -> int:
        """Bytes of all slots and of the kept tokens."""
        return sum(array.nbytes for array in (*self.layers, *self.kept))

    @property
    def slot_bytes(self) -> int:
        """Bytes of one slot."""
        return sum(layer[0].nbytes for layer in self.layers)

    def fill(self, step: Step) -> None:
        """Load a step. Raises ValueError for more tokens that are not settled than a pass has outputs."""
        states = step.states
        assert states is not None
        firsts, loads, settled = states.firsts.tolist(), states.loads.tolist(), states.settled.tolist()
        rows, n_open = [], 0
        for first, stop, slot, n_settled in zip(firsts, [*firsts[1:], len(step.rows)], loads, settled, strict=True):
            rows.append((first, stop, self.n_slots if slot < 0 else slot, first + n_settled, n_open))
            n_open += stop - first - n_settled
        if n_open > self._max_kept:
            raise ValueError(f"a pass takes {self._max_kept} drafted tokens")
        saves = [(row, firsts[row] + n - 1, slot) for row, n, slot in states.saves.tolist()]
        self._rows, self._saves = np.array(rows, np.int32), np.array(saves, np.int32)
        self._parents = np.ascontiguousarray(step.batch.parents, np.int32)
        addresses = address(self._rows), address(self._saves), address(self._parents)
        self._numbers[:N_SET] = addresses[0], len(rows), addresses[1], len(saves), addresses[2]

    def advance(self, source: int, target: int, nodes: Sequence[int]) -> None:
        """Set slot `target` to the state of `source` after these tokens of the last pass, a chain that follows it."""
        assert self.run is not None
        row = int(np.searchsorted(self._rows[:, 0], nodes[0], side="right")) - 1
        self._nodes = np.array(nodes, np.int32) - self._rows[row, 3] + self._rows[row, 4]
        record = self.record
        record["nodes"], record["n_nodes"] = self._nodes.ctypes.data, len(nodes)
        record["source"], record["target"] = source, target
        self.run()

    def read(self, slots: Sequence[int]) -> NDArray[np.uint8]:
        """Contents of slots: uint8[len(slots), slot_bytes]; zeros for a slot below 0."""
        found = np.array([self.n_slots if slot < 0 else slot for slot in slots])
        parts = [layer[found].reshape(len(found), -1).view(np.uint8) for layer in self.layers]
        return np.concatenate(parts, axis=1)

    def write(self, slots: Sequence[int], contents: NDArray[np.uint8]) -> None:
        """Restore contents of slots."""
        start = 0
        for layer in self.layers:
            n_bytes = layer[0].nbytes
            own = np.ascontiguousarray(contents[:, start : start + n_bytes]).view(np.float32)
            layer[list(slots)] = own.reshape(-1, *layer.shape[1:])
            start += n_bytes
