"""Keys and values on the GPU: their arrays, and pages and slots read, written and copied.

In: the KV layers of a spec, limits. Out: a `Cache` for each layer. A page's bytes are those of each layer in turn:
keys, their scales, values, their scales.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgeinfer.backends.base import Limits
from edgeinfer.backends.cuda.driver import Driver, GpuArray, Launch, Stream
from edgeinfer.backends.cuda.layout import KVForm, over
from edgeinfer.backends.cuda.lowering import Cache
from edgeinfer.graph.state import PagedKV
from edgeinfer.graph.step import PAGE, Int32s


class Caches:
    """The KV memory of a lane."""

    def __init__(self, driver: Driver, layers: tuple[PagedKV, ...], limits: Limits) -> None:
        self._driver, self._n_pages = driver, limits.n_pages
        self._pools: list[tuple[GpuArray, int]] = []
        self.layers = [self._layer(*KVForm.of(layer, limits), limits.n_pages * PAGE) for layer in layers]

    def _layer(self, keys: KVForm, values: KVForm, n_slots: int) -> Cache:
        """The arrays of a layer; where there are no scales, the words stand for them."""
        found: list[GpuArray] = []
        for form in (keys, values):
            words = self._driver.zeros(n_slots * form.row_words, np.uint32)
            self._pools.append((words, form.row_words))
            scales = words.view(np.uint16)
            if form.row_scales:
                scales = self._driver.zeros(n_slots * form.row_scales, np.uint16)
                self._pools.append((scales, form.row_scales))
            found += [words, scales]
        return Cache(keys, values, *found)

    @property
    def nbytes(self) -> int:
        return sum(pool.nbytes for pool, _ in self._pools)

    def copy_slots(self, sources: Int32s, targets: Int32s, stream: Stream) -> None:
        """Copy slots in order in all layers."""
        if not len(sources):
            return
        pairs = np.concatenate([sources, targets]).astype(np.int32)
        numbers = self._driver.empty(len(pairs), np.int32)
        numbers.copy_to_device(pairs, stream=stream)
        kernel = self._driver.kernels.get("cache", "copying")
        threads = self._driver.sizes.threads
        launches = [
            Launch(kernel, (over(width, threads), 1, 1), (threads, 1), (pool, numbers, len(sources), width))
            for pool, width in self._pools
        ]
        self._driver.launch(launches, stream)
        stream.synchronize()

    def read_pages(self, pages: Int32s) -> NDArray[np.uint8]:
        """Contents of pages: uint8[len(pages), page_bytes]."""
        parts = [np.empty((len(pages), self._page_bytes(pool)), np.uint8) for pool, _ in self._pools]
        for (pool, _), part in zip(self._pools, parts, strict=True):
            for row, page in enumerate(pages.tolist()):
                self._page(pool, page).copy_to_host(part[row])
        return np.concatenate([*parts, np.empty((len(pages), 0), np.uint8)], axis=1)

    def write_pages(self, pages: Int32s, contents: NDArray[np.uint8]) -> None:
        """Put back contents of pages."""
        start = 0
        for pool, _ in self._pools:
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

    def close(self) -> None:
        """Drop the arrays."""
        self._pools, self.layers = [], []
