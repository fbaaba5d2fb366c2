"""The KV pages of all layers of a lane, and those of layers that keep only a window.

In: what layers keep, limits. Out: pools by layer, and contents of pages. The engine decides what each page holds.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from edgeinfer.backends.base import Limits
from edgeinfer.backends.cpu.layout.pages import KVPool, PageLayout, pools_of, read_pages, write_pages
from edgeinfer.graph.operands import PagedKV
from edgeinfer.graph.step import PAGE, Int32s


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
        limited = [kept is not None and kept.limit(layer) for layer in layers]
        everywhere, places = np.arange(limits.n_pages, dtype=np.int32), np.zeros(limits.n_pages, np.int32)
        n_kept = 0 if kept is None else kept.n_pages
        layouts, heads = [PageLayout.of(limits.kv, kv) for kv in layers], [kv.kv_heads for kv in layers]
        groups = {}
        for is_limited, n_pages, where in ((False, limits.n_pages, everywhere), (True, n_kept, places)):
            own = [number for number, each in enumerate(limited) if each is is_limited]
            parts = [layouts[number] for number in own], [heads[number] for number in own]
            groups[is_limited] = dict(zip(own, pools_of(*parts, n_pages, where, huge=huge), strict=True))
        self.pools = [groups[each][number] for number, each in enumerate(limited)]
        self._whole = list(groups[False].values())
        self.windows = CpuWindows(list(groups[True].values()), places) if groups[True] else None

    @property
    def nbytes(self) -> int:
        """Bytes of all pages."""
        return sum(pool.nbytes for pool in self.pools)

    def close(self) -> None:
        """Free the memory."""
        self.pools.clear()
        self._whole.clear()
        self.windows = None

    def read(self, pages: Int32s) -> NDArray[np.uint8]:
        """Contents of pages of layers that keep everything: uint8[len(pages), page_bytes]."""
        return read_pages(self._whole, pages)

    def write(self, pages: Int32s, contents: NDArray[np.uint8]) -> None:
        """Restore contents from `read`."""
        write_pages(self._whole, pages, contents)


def kv_bytes(layers: Sequence[PagedKV], limits: Limits) -> tuple[int, int, int]:
    """Bytes of all pages, of the pages of layers that keep only a window, and per further token of context."""
    per_token = {True: 0, False: 0}
    for layer in layers:
        is_limited = limits.windows is not None and limits.windows.limit(layer)
        per_token[is_limited] += layer.kv_heads * PageLayout.of(limits.kv, layer).position_bytes
    n_kept = 0 if limits.windows is None else limits.windows.n_pages
    in_windows = per_token[True] * PAGE * n_kept
    return in_windows + per_token[False] * PAGE * limits.n_pages, in_windows, per_token[False]
