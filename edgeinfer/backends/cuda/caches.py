"""The KV cache on the GPU: its arrays, and reading, writing and copying of pages and slots.

In: the KV layers of a spec, limits. Out: a `GpuLayerCache` per layer. The bytes of a page are those of each layer in
turn: keys, their scales, values, their scales. Layers with a window have fewer pages; a map on the host gives the page
of each KV memory page, so kernels receive slots and tables that are already translated (`step`).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgeinfer.backends.base import Limits
from edgeinfer.backends.cuda.driver import Driver, GpuArray, GpuLaunch, Stream
from edgeinfer.backends.cuda.layout import KVForm, over
from edgeinfer.backends.cuda.lowering import GpuLayerCache
from edgeinfer.backends.cuda.step import located
from edgeinfer.graph.operands import PagedKV
from edgeinfer.graph.step import PAGE, Int32s


class GpuKVMemory:
    """The KV memory of a lane. `places`: the page of each KV memory page in layers with a window."""

    def __init__(self, driver: Driver, layers: tuple[PagedKV, ...], limits: Limits, places: Int32s) -> None:
        self._driver = driver
        self._whole, self._limited = Pools(driver, limits.n_pages), None
        if limits.windows is not None and any(map(limits.windows.limit, layers)):
            self._limited = Pools(driver, limits.windows.n_pages)
        self.windows = None if self._limited is None else CudaWindows(self._limited, places)
        self.layers = [self._layer(layer, limits) for layer in layers]

    def _layer(self, layer: PagedKV, limits: Limits) -> GpuLayerCache:
        keys, values = KVForm.of(layer, limits)
        if self._limited is not None and limits.windows is not None and limits.windows.limit(layer):
            return self._limited.layer(keys, values, is_limited=True)
        return self._whole.layer(keys, values, is_limited=False)

    @property
    def nbytes(self) -> int:
        return self._whole.nbytes + (0 if self._limited is None else self._limited.nbytes)

    def copy_slots(self, sources: Int32s, targets: Int32s, stream: Stream) -> None:
        """Copy slots, in order, in all layers."""
        if not len(sources):
            return
        self._whole.copy_slots(sources, targets, stream)
        if self.windows is not None:
            self.windows.copy_slots(sources, targets, stream)

    def read_pages(self, pages: Int32s) -> NDArray[np.uint8]:
        """Contents of pages, without window layers: uint8[len(pages), page_bytes]."""
        return self._whole.read_pages(pages)

    def write_pages(self, pages: Int32s, contents: NDArray[np.uint8]) -> None:
        """Restore the contents of pages."""
        self._whole.write_pages(pages, contents)

    def close(self) -> None:
        """Free the arrays."""
        self._whole.arrays.clear()
        if self._limited is not None:
            self._limited.arrays.clear()
        self.layers, self.windows = [], None


class CudaWindows:
    """Layers with a window. Callers must ensure that the GPU is idle."""

    def __init__(self, pools: Pools, places: Int32s) -> None:
        self._pools, self._places = pools, places

    @property
    def page_bytes(self) -> int:
        """Bytes of a page."""
        return self._pools.page_bytes

    def assign(self, pages: Int32s, places: Int32s) -> None:
        """Store pages at these places from now on."""
        self._places[pages] = places

    def read(self, pages: Int32s) -> NDArray[np.uint8]:
        """Contents of pages that have a place: uint8[len(pages), page_bytes]."""
        return self._pools.read_pages(self._places[pages])

    def write(self, pages: Int32s, contents: NDArray[np.uint8]) -> None:
        """Restore what `read` returned."""
        self._pools.write_pages(self._places[pages], contents)

    def copy_slots(self, sources: Int32s, targets: Int32s, stream: Stream) -> None:
        """Copy slots in order."""
        self._pools.copy_slots(located(self._places, sources), located(self._places, targets), stream)


class Pools:
    """The arrays of layers that have equally many pages."""

    def __init__(self, driver: Driver, n_pages: int) -> None:
        self._driver, self._n_pages = driver, n_pages
        self.arrays: list[tuple[GpuArray, int]] = []

    def layer(self, keys: KVForm, values: KVForm, *, is_limited: bool) -> GpuLayerCache:
        """The arrays of a layer; without scales, the words take their place."""
        found: list[GpuArray] = []
        for form in (keys, values):
            words = self._driver.zeros(self._n_pages * PAGE * form.row_words, np.uint32)
            self.arrays.append((words, form.row_words))
            scales = words.view(np.uint16)
            if form.row_scales:
                scales = self._driver.zeros(self._n_pages * PAGE * form.row_scales, np.uint16)
                self.arrays.append((scales, form.row_scales))
            found += [words, scales]
        key_words, key_scales, value_words, value_scales = found
        return GpuLayerCache(keys, values, key_words, key_scales, value_words, value_scales, is_limited)

    @property
    def nbytes(self) -> int:
        return sum(pool.nbytes for pool, _ in self.arrays)

    @property
    def page_bytes(self) -> int:
        """Bytes of a page over all these layers."""
        return self.nbytes // self._n_pages

    def copy_slots(self, sources: Int32s, targets: Int32s, stream: Stream) -> None:
        """Copy slots in order."""
        pairs = np.concatenate([sources, targets]).astype(np.int32)
        numbers = self._driver.empty(len(pairs), np.int32)
        numbers.copy_to_device(pairs, stream=stream)
        kernel = self._driver.kernels.get("cache", "copying")
        threads = self._driver.sizes.threads
        launches = [
            GpuLaunch(kernel, (over(width, threads), 1, 1), (threads, 1), (pool, numbers, len(sources), width))
            for pool, width in self.arrays
        ]
        self._driver.launch(launches, stream)
        stream.synchronize()

    def read_pages(self, pages: Int32s) -> NDArray[np.uint8]:
        """Contents of pages: uint8[len(pages), page_bytes]."""
        parts = [np.empty((len(pages), self._page_bytes(pool)), np.uint8) for pool, _ in self.arrays]
        for (pool, _), part in zip(self.arrays, parts, strict=True):
            for row, page in enumerate(pages.tolist()):
                self._page(pool, page).copy_to_host(part[row])
        return np.concatenate([*parts, np.empty((len(pages), 0), np.uint8)], axis=1)

    def write_pages(self, pages: Int32s, contents: NDArray[np.uint8]) -> None:
        """Restore the contents of pages."""
        start = 0
        for pool, _ in self.arrays:
            width = self._page_bytes(pool)
            for row, page in enumerate(pages.tolist()):
                part = np.ascontiguousarray(contents[row, start : start + width])
                self._page(pool, page).copy_to_device(part)
            start += width

    def _page_bytes(self, pool: GpuArray) -> int:
        return pool.nbytes // self._n_pages

    def _page(self, pool: GpuArray, page: int) -> GpuArray:
        """The bytes of a page of a pool."""
        width = self._page_bytes(pool)
        return pool.view(np.uint8)[page * width : (page + 1) * width]
