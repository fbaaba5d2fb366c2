"""How cached keys and values lie in memory: pages of PAGE positions of one kv head, as float16 or rounded with scales.

Positions are the lanes of the score kernels, so keys come by columns. Keys and values each have their own form, and
their own number of blocks of 32 columns of the rotated head; their scales float16[scales, PAGE] follow their codes:
  f16   keys float16[key_width, PAGE]; values float16[PAGE, value_padded]
  q8    keys uint8[blocks, 8, PAGE, 4] (code + 128, four columns of each position side by side); values
        int8[blocks, PAGE, 32]; a scale per block
  q4    keys uint8[blocks, 4, PAGE, 4] and values uint8[blocks, PAGE, 16], two codes to a byte: the low one of a column
        of the block's first half, the high one of the column 16 further on; a scale per half of a block
Pages come in banks of about BANK_PAGES: a bank holds them layer by layer, in a layer head by head, keys before values.
So a long sequence is read in few long runs, which suits caches, and a short one touches little memory.
A layer that keeps only a window has fewer pages; `places` maps each page of the KV cache to one of the layer's own.
The last block is padded with zeros. A code of q8 stands for code * scale, one of q4 for (code - 7.5) * scale
(`meanings.round_numbers`). In: sizes. Out: byte counts, and pools of pages whose slots can be copied. Loads no
compiler.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeinfer.backends.cpu.layout.attention_records import COPY_SLOTS
from edgeinfer.backends.cpu.layout.padding import BLOCK, CHUNK_PAGES, LANES, SCORE_BYTES, padded
from edgeinfer.backends.meanings import FORMS, RoundedForm
from edgeinfer.graph.operands import PagedKV
from edgeinfer.graph.step import PAGE, Int32s
from edgeinfer.jit.memory import aligned
from edgeinfer.settings import KVKind

BANK_PAGES = 16
GROUPS = PAGE // LANES
SCALE_BYTES = 2


@dataclass(frozen=True, slots=True)
class RoundedPart:
    """Sizes of the rounded keys, or values, of one kv head in a page."""

    form: RoundedForm
    width: int

    @property
    def blocks(self) -> int:
        """Blocks of 32 columns."""
        return padded(self.width, BLOCK) // BLOCK

    @property
    def block_bytes(self) -> int:
        """Bytes of the codes of a block and a position."""
        return BLOCK if self.form == "q8" else BLOCK // 2

    @property
    def scales(self) -> int:
        """Scales of a position."""
        return self.blocks * (1 if self.form == "q8" else 2)

    @property
    def code_bytes(self) -> int:
        """Bytes of all codes; the scales follow."""
        return PAGE * self.block_bytes * self.blocks

    @property
    def nbytes(self) -> int:
        return self.code_bytes + PAGE * SCALE_BYTES * self.scales


@dataclass(frozen=True, slots=True)
class PageLayout:
    """Sizes of the keys and of the values of one kv head in a page."""

    kind: KVKind
    key_width: int
    value_width: int

    @classmethod
    def of(cls, kind: KVKind, layer: PagedKV) -> PageLayout:
        """How a layer's keys and values lie."""
        return cls(kind, layer.key_width, layer.value_width)

    @property
    def rounded(self) -> tuple[RoundedPart, RoundedPart] | None:
        """The keys and the values; None if they are float16."""
        forms = FORMS[self.kind]
        if forms is None:
            return None
        return RoundedPart(forms[0], self.key_width), RoundedPart(forms[1], self.value_width)

    @property
    def key_bytes(self) -> int:
        return PAGE * 2 * self.key_width if self.rounded is None else self.rounded[0].nbytes

    @property
    def value_bytes(self) -> int:
        return PAGE * 2 * padded(self.value_width) if self.rounded is None else self.rounded[1].nbytes

    @property
    def position_bytes(self) -> int:
        """Bytes of a key and a value of one position."""
        return (self.key_bytes + self.value_bytes) // PAGE


def attention_scratch_bytes(tile_rows: int, layout: PageLayout) -> int:
    """Bytes of scratch of an attention worker: five parts per query row, a chunk's pages, a page as float32.

    Rounded pages are not converted to float32: the shares of each row take that room, times scales of 4-bit values.
    """
    key, value = padded(layout.key_width), padded(layout.value_width)
    rows = tile_rows * (key * 4 + 2 * SCORE_BYTES + 2 * (LANES + value) * 4)
    wide = 4 * PAGE * max(key, value) if layout.rounded is None else tile_rows * SCORE_BYTES
    return rows + CHUNK_PAGES * (layout.key_bytes + layout.value_bytes) + wide


def banks_of(n_pages: int) -> tuple[int, int]:
    """Banks, and pages of each; the last one may have some unused pages, which are never touched."""
    n_banks = max(1, -(-n_pages // BANK_PAGES))
    return n_banks, -(-n_pages // n_banks)


def pool_bytes(layout: PageLayout, n_pages: int, kv_heads: int) -> int:
    """Bytes of pages of a layer."""
    return n_pages * kv_heads * (layout.key_bytes + layout.value_bytes)


def pools_of(
    layouts: Sequence[PageLayout], kv_heads: Sequence[int], n_pages: int, places: Int32s, *, huge: bool = True
) -> list[KVPool]:
    """The pools of layers in one piece of memory: whatever the context's length, it lies on huge pages.

    Not `huge`: each head's pages come from the node of the worker that first writes there, which then attends to them.
    """
    if not layouts:
        return []
    n_banks, bank_pages = banks_of(n_pages)
    sizes = [pool_bytes(layout, bank_pages, heads) for layout, heads in zip(layouts, kv_heads, strict=True)]
    memory, stops = aligned((n_banks, sum(sizes)), np.uint8, huge=huge), accumulate(sizes)
    return [
        KVPool(layout, n_pages, heads, memory[:, stop - size : stop], places)
        for layout, heads, size, stop in zip(layouts, kv_heads, sizes, stops, strict=True)
    ]


class KVPool:
    """The KV pages of a layer: keys uint8[banks, G, bank_pages, key_bytes], values uint8[banks, G, bank_pages, …]."""

    def __init__(
        self,
        layout: PageLayout,
        n_pages: int,
        kv_heads: int,
        memory: NDArray[np.uint8] | None = None,
        places: Int32s | None = None,
    ) -> None:
        """`memory`: uint8[banks, bytes of a bank] of zeros on 64-byte boundaries; by default new.

        `places`: the place, below `n_pages`, of each page of the KV cache; by default the page's own number.
        """
        self.layout = layout
        self.places = np.arange(n_pages, dtype=np.int32) if places is None else places
        n_banks, self.bank_pages = banks_of(n_pages)
        if memory is None:
            memory = aligned((n_banks, pool_bytes(layout, self.bank_pages, kv_heads)), np.uint8)
        self.bank_bytes, self.nbytes = memory.strides[0], pool_bytes(layout, n_pages, kv_heads)
        cut, shape = self.bank_pages * kv_heads * layout.key_bytes, (n_banks, kv_heads, self.bank_pages)
        self.keys: NDArray[np.uint8] = memory[:, :cut].reshape(*shape, layout.key_bytes)
        self.values: NDArray[np.uint8] = memory[:, cut:].reshape(*shape, layout.value_bytes)

    def parts(self) -> tuple[NDArray[Any], ...]:
        """Views of the contents of slots: keys and values, or their codes and scales, each [`place`, G, ...].

        f16: keys float16[..., key_width], values float16[..., value_padded]. Rounded: key codes uint8[..., words, 4]
        of 8 or 4 words a block, key scales float16[..., scales], value codes int8[..., blocks, 32] or uint8[...,
        blocks, 16], value scales float16[..., scales].
        """
        layout, start = self.layout, self.keys.shape[:3]
        if layout.rounded is None:
            keys = self.keys.view(np.float16).reshape(*start, layout.key_width, PAGE)
            values = self.values.view(np.float16).reshape(*start, PAGE, -1)
            return keys.transpose(0, 2, 4, 1, 3), values.transpose(0, 2, 3, 1, 4)
        key, value = layout.rounded
        key_codes = self.keys[..., : key.code_bytes].reshape(*start, -1, PAGE, 4)
        value_codes = self.values[..., : value.code_bytes].reshape(*start, value.blocks, PAGE, value.block_bytes)
        key_scales, value_scales = (
            part[..., each.code_bytes :].view(np.float16).reshape(*start, each.scales, PAGE)
            for part, each in ((self.keys, key), (self.values, value))
        )
        return (
            key_codes.transpose(0, 2, 4, 1, 3, 5),
            key_scales.transpose(0, 2, 4, 1, 3),
            (value_codes.view(np.int8) if value.form == "q8" else value_codes).transpose(0, 2, 4, 1, 3, 5),
            value_scales.transpose(0, 2, 4, 1, 3),
        )

    def place(self, slots: Int32s) -> tuple[Int32s, Int32s, Int32s]:
        """Bank, page in it and position of slots: indices of `parts`."""
        pages = self.places[slots // PAGE]
        return pages // self.bank_pages, pages % self.bank_pages, slots % PAGE

    def copy_slots(self, sources: Int32s, targets: Int32s) -> None:
        """Copy keys and values from slots to slots."""
        for part in self.parts():
            part[self.place(targets)] = part[self.place(sources)]


def slot_copying(pools: list[KVPool]) -> NDArray[np.void]:
    """Where the layers' pages lie: COPY_SLOTS[layers]."""
    layers = np.zeros(len(pools), COPY_SLOTS)
    for layer, pool in zip(layers, pools, strict=True):
        layer["keys"], layer["values"] = pool.keys.ctypes.data, pool.values.ctypes.data
        layer["bank_pages"], layer["bank_bytes"] = pool.bank_pages, pool.bank_bytes
        layer["places"] = pool.places.ctypes.data
        layer["key_bytes"], layer["value_bytes"] = pool.layout.key_bytes, pool.layout.value_bytes
        layer["kv_heads"], layer["key_width"] = pool.keys.shape[1], pool.layout.key_width
        layer["value_width"], layer["value_padded"] = pool.layout.value_width, padded(pool.layout.value_width)
    return layers


def read_pages(pools: Sequence[KVPool], pages: Int32s) -> NDArray[np.uint8]:
    """Contents of pages of these layers: uint8[len(pages), page_bytes]."""
    parts = [
        array[places // pool.bank_pages, :, places % pool.bank_pages].reshape(len(pages), -1)
        for pool, places in ((pool, pool.places[pages]) for pool in pools)
        for array in (pool.keys, pool.values)
    ]
    return np.concatenate(parts, axis=1) if parts else np.zeros((len(pages), 0), np.uint8)


def write_pages(pools: Sequence[KVPool], pages: Int32s, contents: NDArray[np.uint8]) -> None:
    """Restore contents of pages of these layers."""
    start = 0
    for pool in pools:
        places = pool.places[pages]
        for array in (pool.keys, pool.values):
            _, kv_heads, _, n_bytes = array.shape
            own = contents[:, start : start + kv_heads * n_bytes].reshape(len(pages), kv_heads, n_bytes)
            array[places // pool.bank_pages, :, places % pool.bank_pages] = own
            start += kv_heads * n_bytes
