"""KV pages of layers that keep everything, in a file of which only a part is in memory (`Limits.kv_ram`).

In: layers, limits, which KV pages and heads of a layer are about to be used. Out: pools, and the system's pages that
hold them. What a pass uses is the lane's business (`lanes.filed`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate

import numpy as np

from edgeinfer.backends.base import Limits
from edgeinfer.backends.cpu.layout.pages import KVPool, PageLayout, banks_of, pool_bytes
from edgeinfer.backends.cpu.memory.kv_file import NONE, PAGE_BYTES, KVFile
from edgeinfer.errors import BadSetting
from edgeinfer.graph.operands import PagedKV
from edgeinfer.graph.step import PAGE, Int32s
from edgeinfer.text_values import size_text

GROUP_SHARE = 4
"""KV pages that are read or written as a whole take turns: so many take a quarter of the memory."""


def kv_file_bytes(layers: Sequence[PagedKV], limits: Limits) -> int:
    """Bytes of the file that keys and values are in; 0 if all of them may be in memory.

    Raises BadSetting for too little memory: a pass uses a layer at a time.
    """
    kept = limits.windows
    sizes = [
        layer.kv_heads * PageLayout.of(limits.kv, layer).position_bytes * PAGE * limits.n_pages
        for layer in layers
        if kept is None or not kept.limit(layer)
    ]
    if not limits.kv_ram or limits.kv_ram >= sum(sizes):
        return 0
    if limits.kv_ram < max(sizes):
        least = -(-max(sizes) // 10**6)
        raise BadSetting(
            f"--kv-ram {size_text(limits.kv_ram)} is too little: a layer at a time is read, {least} MB with "
            f"this context; --kv-ram {least}MB would work"
        )
    return sum(sizes)


class FiledPages:
    """Pools in a file, in the order of layers that keep everything."""

    def __init__(self, layouts: Sequence[PageLayout], kv_heads: Sequence[int], limits: Limits, places: Int32s) -> None:
        """Raises as `KVFile`."""
        n_banks, bank_pages = banks_of(limits.n_pages)
        sizes = [pool_bytes(layout, bank_pages, heads) for layout, heads in zip(layouts, kv_heads, strict=True)]
        self._file = KVFile(n_banks * sum(sizes), limits.kv_ram)
        memory = self._file.memory[: n_banks * sum(sizes)].reshape(n_banks, -1)
        self.pools = [
            KVPool(layout, limits.n_pages, heads, memory[:, stop - size : stop], places)
            for layout, heads, size, stop in zip(layouts, kv_heads, sizes, accumulate(sizes), strict=True)
        ]
        start = memory.ctypes.data
        self._tables = [_system_pages(pool, limits.n_pages, start) for pool in self.pools]
        page_bytes = sum(pool.nbytes for pool in self.pools) // limits.n_pages
        self._group = max(1, limits.kv_ram // GROUP_SHARE // page_bytes)

    @property
    def resident_bytes(self) -> int:
        """Bytes of pools in memory."""
        return self._file.resident_bytes

    def use(self, layer: int, pages: Int32s, heads: Int32s) -> None:
        """Have the keys and values of these pages and heads, pairwise, of a layer in memory."""
        self._file.use(self._tables[layer][pages, heads].ravel())

    def use_all(self, layer: int, pages: Int32s, *, in_turn: bool) -> None:
        """Have those of all heads in memory; `in_turn`: and of the next layer if there is room, which comes soon."""
        has_next = in_turn and layer + 1 < len(self._tables)
        ahead = self._tables[layer + 1][pages].ravel() if has_next else NONE
        self._file.use(self._tables[layer][pages].ravel(), ahead, in_turn=in_turn)

    def use_pages(self, pages: Int32s) -> None:
        """Have these pages of all layers in memory."""
        self._file.use(np.concatenate([table[pages].ravel() for table in self._tables]))

    def in_groups(self, pages: Int32s) -> Iterator[slice]:
        """Parts of `pages`, each of which is in memory, with all layers, until the next one is asked for."""
        for start in range(0, len(pages), self._group):
            part = slice(start, min(start + self._group, len(pages)))
            self.use_pages(pages[part])
            yield part

    @property
    def group_slots(self) -> int:
        """Slots of KV pages of which twice as many may be used as a whole at a time."""
        return max(1, self._group // 2) * PAGE

    def empty(self) -> None:
        """Have nothing in memory."""
        self._file.empty()

    def close(self) -> None:
        """Free the file once its pools are no longer used."""
        self.pools.clear()
        self._file.close()


def _system_pages(pool: KVPool, n_pages: int, start: int) -> Int32s:
    """The system's pages behind each KV page and head: int32[pages, G, n]; some stand there twice."""
    pages = np.arange(n_pages)
    found = []
    for array in (pool.keys, pool.values):
        banks, heads, _, n_bytes = array.strides[0], *array.strides[1:3], array.shape[3]
        at = array.ctypes.data - start + (pages // pool.bank_pages * banks + pages % pool.bank_pages * n_bytes)
        first = at[:, None] + np.arange(array.shape[1]) * heads
        last = (first + n_bytes - 1) // PAGE_BYTES
        reach = np.arange(-(-n_bytes // PAGE_BYTES) + 1)
        found.append(np.minimum((first // PAGE_BYTES)[..., None] + reach, last[..., None]))
    return np.concatenate(found, axis=2).astype(np.int32)
