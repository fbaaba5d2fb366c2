"""How cached keys and values lie in memory: pages of PAGE positions of one kv head, as float16 or as int8 with scales.

Positions are the lanes of the score kernels, so keys come by columns:
  f16   keys float16[head_width, PAGE]; values float16[PAGE, head_padded]
  int8  keys uint8[blocks, 8, PAGE, 4] (code + 128, four columns of each position side by side), then their scales
        float16[blocks, PAGE]; values int8[blocks, PAGE, 32], then their scales float16[blocks, PAGE]
The pages of one head follow each other, so that a long sequence is read in few long runs, as caches like it.
A block is 32 columns, the last one padded with zeros; code * scale is what it stands for. In: sizes. Out: byte counts,
and pools of pages whose slots can be copied. Loads no compiler.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeinfer.backends.base import PAGE, Int32s
from edgeinfer.backends.cpu.layout import BLOCK, CHUNK_PAGES, LANES, SCORE_BYTES, padded
from edgeinfer.backends.cpu.memory import aligned
from edgeinfer.settings import KVKind

GROUPS = PAGE // LANES
SCALE_BYTES = 2
VECTORS = BLOCK // 4
"""Vectors of 64 bytes that hold the key codes of 16 positions and a block."""


@dataclass(frozen=True, slots=True)
class PageLayout:
    """Sizes of the keys and of the values of one kv head in a page."""

    kind: KVKind
    head_width: int

    @property
    def blocks(self) -> int:
        """Blocks of 32 columns of an int8 page."""
        return padded(self.head_width, BLOCK) // BLOCK

    @property
    def codes_bytes(self) -> int:
        """Bytes of the codes of an int8 page; the scales follow."""
        return PAGE * BLOCK * self.blocks

    @property
    def key_bytes(self) -> int:
        return self._rounded_bytes if self.kind == "int8" else PAGE * 2 * self.head_width

    @property
    def value_bytes(self) -> int:
        return self._rounded_bytes if self.kind == "int8" else PAGE * 2 * padded(self.head_width)

    @property
    def position_bytes(self) -> int:
        """Bytes of a key and a value of one position."""
        return (self.key_bytes + self.value_bytes) // PAGE

    @property
    def _rounded_bytes(self) -> int:
        return self.codes_bytes + PAGE * SCALE_BYTES * self.blocks


def attention_scratch_bytes(tile_rows: int, layout: PageLayout) -> int:
    """Bytes of scratch of an attention worker: five parts per query row, a chunk's pages, a page as float32."""
    head = padded(layout.head_width)
    rows = tile_rows * (head * 4 + 2 * SCORE_BYTES + 2 * (LANES + head) * 4)
    return rows + CHUNK_PAGES * (layout.key_bytes + layout.value_bytes) + 4 * PAGE * head


def pool_bytes(layout: PageLayout, n_pages: int, kv_heads: int) -> int:
    """Bytes of the pages of a layer."""
    return n_pages * kv_heads * (layout.key_bytes + layout.value_bytes)


def pools_of(layouts: Sequence[PageLayout], kv_heads: Sequence[int], n_pages: int) -> list[KVPool]:
    """The pools of all layers in one piece of memory: however short the context, it lies on huge pages."""
    sizes = [pool_bytes(layout, n_pages, heads) for layout, heads in zip(layouts, kv_heads, strict=True)]
    memory, stops = aligned((sum(sizes),), np.uint8), accumulate(sizes)
    return [
        KVPool(layout, n_pages, heads, memory[stop - size : stop])
        for layout, heads, size, stop in zip(layouts, kv_heads, sizes, stops, strict=True)
    ]


class KVPool:
    """The KV pages of one layer: keys uint8[G, n_pages, key_bytes] and values uint8[G, n_pages, value_bytes]."""

    def __init__(
        self, layout: PageLayout, n_pages: int, kv_heads: int, memory: NDArray[np.uint8] | None = None
    ) -> None:
        """`memory`: uint8[pool_bytes] of zeros on a 64-byte boundary; by default new."""
        self.layout, self.n_pages = layout, n_pages
        if memory is None:
            memory = aligned((pool_bytes(layout, n_pages, kv_heads),), np.uint8)
        n_heads = n_pages * kv_heads
        keys, values = memory[: n_heads * layout.key_bytes], memory[n_heads * layout.key_bytes :]
        self.keys: NDArray[np.uint8] = keys.reshape(kv_heads, n_pages, layout.key_bytes)
        self.values: NDArray[np.uint8] = values.reshape(kv_heads, n_pages, layout.value_bytes)

    @property
    def nbytes(self) -> int:
        return self.keys.nbytes + self.values.nbytes

    def parts(self) -> tuple[NDArray[Any], ...]:
        """Views of all that a slot holds, [n_pages, PAGE, G, ...]: keys and values, or their codes and scales.

        f16: keys float16[..., head_width], values float16[..., head_padded]. int8: key codes uint8[..., blocks * 8, 4],
        key scales float16[..., blocks], value codes int8[..., blocks, 32], value scales float16[..., blocks].
        """
        layout, start = self.layout, self.keys.shape[:2]
        if layout.kind == "f16":
            keys = self.keys.view(np.float16).reshape(*start, layout.head_width, PAGE)
            values = self.values.view(np.float16).reshape(*start, PAGE, -1)
            return keys.transpose(1, 3, 0, 2), values.transpose(1, 2, 0, 3)
        codes, blocks = layout.codes_bytes, layout.blocks
        key_codes = self.keys[..., :codes].reshape(*start, blocks * VECTORS, PAGE, 4)
        key_scales = self.keys[..., codes:].view(np.float16).reshape(*start, blocks, PAGE)
        value_codes = self.values[..., :codes].view(np.int8).reshape(*start, blocks, PAGE, BLOCK)
        value_scales = self.values[..., codes:].view(np.float16).reshape(*start, blocks, PAGE)
        return (
            key_codes.transpose(1, 3, 0, 2, 4),
            key_scales.transpose(1, 3, 0, 2),
            value_codes.transpose(1, 3, 0, 2, 4),
            value_scales.transpose(1, 3, 0, 2),
        )

    def copy_slots(self, sources: Int32s, targets: Int32s) -> None:
        """Copy keys and values of slots."""
        for part in self.parts():
            part[targets // PAGE, targets % PAGE] = part[sources // PAGE, sources % PAGE]


def read_pages(pools: list[KVPool], pages: Int32s) -> NDArray[np.uint8]:
    """Contents of pages of all layers: uint8[len(pages), page_bytes]."""
    parts = [array[:, pages].swapaxes(0, 1) for pool in pools for array in (pool.keys, pool.values)]
    return np.concatenate([part.reshape(len(pages), -1) for part in parts], axis=1)


def write_pages(pools: list[KVPool], pages: Int32s, contents: NDArray[np.uint8]) -> None:
    """Put back contents of pages of all layers."""
    start = 0
    for pool in pools:
        for array in (pool.keys, pool.values):
            kv_heads, _, n_bytes = array.shape
            own = contents[:, start : start + kv_heads * n_bytes].reshape(len(pages), kv_heads, n_bytes)
            array[:, pages] = own.swapaxes(0, 1)
            start += kv_heads * n_bytes
