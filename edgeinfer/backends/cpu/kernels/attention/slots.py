"""Where the keys and values of a page lie for an attention kernel: in place, or gathered along a draft tree's path.

Memory: pages as `layout.pages` lays them out; a gathered page has the same layout, its keys first, then its values.
`args` is an attention record, `tile` int32[TILE_INTS] of the step. Keys and values are copied from slots to slots in
all layers at once: COPY_SLOTS records, one for each layer; sources and targets int32[count], with no slot in both. The
NumPy twin of that is `pages.KVPool.copy_slots`.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from edgeinfer.backends.cpu.kernels.attention.forms import has_small_keys, has_small_values
from edgeinfer.backends.cpu.layout.attention_records import COPY_SLOTS
from edgeinfer.backends.cpu.layout.padding import BLOCK, CHUNK
from edgeinfer.backends.cpu.layout.step_records import TILE
from edgeinfer.graph.step import PAGE
from edgeinfer.jit import simd
from edgeinfer.jit.compiler import inline

FIRST, N_TOKENS, ROW, START, PATH = (TILE[name] for name in ("first", "n_tokens", "row", "start", "path"))
LOWEST, HIGHEST, PATH_INTS = (TILE[name] for name in ("lowest", "highest", "path_ints"))
SPARE, GATHERS, CHOOSING = TILE["spare"], TILE["gathers"], TILE["block"]
copied_layer_at = simd.record_at(COPY_SLOTS)
LAYER_BYTES = COPY_SLOTS.itemsize


@inline
def has_spans(args, step):
    """Whether tokens see what their spans say."""
    return args.spans != 0 and step.spans != 0


@inline
def first_seen(args, step, token, position):
    """The first position that a token at this position sees, which may be below zero."""
    first = position + 1 - args.window
    if args.chunked != 0:
        first = position // args.window * args.window
    if has_spans(args, step):
        first = max(first, simd.load_int32(step.spans + 8 * token))
    return first


@inline
def last_seen(args, step, token, position):
    """The last position that a token at this position sees."""
    if has_spans(args, step):
        return position + simd.load_int32(step.spans + 8 * token + 4)
    if args.full == 0:
        return position
    return min(simd.load_int32(step.ends + 4 * token), position + args.window - 1)


@inline
def last_token(tile):
    """The last token of a tile; in a chain it is at the highest position, and sees no less than the others."""
    return simd.load_int32(tile + FIRST) + simd.load_int32(tile + N_TOKENS) - 1


@inline
def first_of_tile(args, step, tile):
    """The first position that any token of a tile sees, which may be below zero."""
    return first_seen(args, step, simd.load_int32(tile + FIRST), simd.load_int32(tile + LOWEST))


@inline
def last_of_tile(args, step, tile):
    """The last position that any token of a tile sees."""
    return last_seen(args, step, last_token(tile), simd.load_int32(tile + HIGHEST))


@inline
def first_chunk(args, step, tile):
    """The first chunk that any token of a tile sees."""
    return max(0, first_of_tile(args, step, tile)) // CHUNK


@inline
def last_chunk(args, step, tile):
    """The last chunk that any token of a tile sees."""
    return last_of_tile(args, step, tile) // CHUNK


@inline
def block_list(args, tile, kv_head):
    """Address of the number of chunks chosen for a tile's block and kv head, and of these chunks; 0: all of them."""
    block = simd.load_int32(tile + CHOOSING)
    if args.block_lists == 0 or block < 0:
        return np.int64(0)
    return args.block_lists + (block * args.kv_heads + kv_head) * args.block_list_bytes


@inline
def chunk_at(chosen, first, place):
    """The chunk at a place of the list `chosen`, or, if that is 0, from the first one on."""
    if chosen == 0:
        return first + place
    return np.int64(simd.load_int32(chosen + 4 + 4 * place))


@inline
def page_in_place(args, kv_head, page):
    """Addresses of the keys and values of a kv head of a page, for a record with the places of a layer's pages."""
    page = simd.load_int32(args.places + 4 * page)
    bank = page // args.bank_pages
    start, place = bank * args.bank_bytes, kv_head * args.bank_pages + page - bank * args.bank_pages
    return args.keys + start + place * args.key_bytes, args.values + start + place * args.value_bytes


@inline
def copy_halves(args, keys, values, place, to_keys, to_values, to_place):
    """Copy one position of a float16 page."""
    keys, to_keys = keys + place * 2, to_keys + to_place * 2
    for index in range(0, args.key_width * PAGE * 2, PAGE * 2):
        simd.copy_2_bytes(to_keys + index, keys + index)
    for index in range(0, args.value_padded * 2, 16):
        at = args.value_padded * 2
        simd.copy_16_bytes(to_values + to_place * at + index, values + place * at + index)


@inline
def copy_rounded(kind, args, keys, values, place, to_keys, to_values, to_place):
    """Copy one position of a page of rounded keys and values."""
    n_bytes, n_scales = BLOCK, 1
    if has_small_keys(kind):
        n_bytes, n_scales = BLOCK // 2, 2
    blocks = (args.key_width + BLOCK - 1) // BLOCK
    codes = PAGE * n_bytes * blocks
    for four in range(0, codes, PAGE * 4):
        simd.store_int32(to_keys + four + to_place * 4, simd.load_int32(keys + four + place * 4))
    copy_scales(keys + codes + place * 2, to_keys + codes + to_place * 2, blocks * n_scales)
    copy_rounded_values(kind, args, values, place, to_values, to_place)


@inline
def copy_rounded_values(kind, args, values, place, to_values, to_place):
    """Copy the value of one position of a rounded page."""
    n_bytes, n_scales = BLOCK, 1
    if has_small_values(kind):
        n_bytes, n_scales = BLOCK // 2, 2
    blocks = (args.value_width + BLOCK - 1) // BLOCK
    codes = PAGE * n_bytes * blocks
    for start in range(0, codes, PAGE * n_bytes):
        for part in range(start, start + n_bytes, 16):
            simd.copy_16_bytes(to_values + part + to_place * n_bytes, values + part + place * n_bytes)
    copy_scales(values + codes + place * 2, to_values + codes + to_place * 2, blocks * n_scales)


@inline
def copy_scales(scales, target, count):
    """Copy the scales of one position."""
    for at in range(0, count * PAGE * 2, PAGE * 2):
        simd.copy_2_bytes(target + at, scales + at)


@inline
def gather_page(kind, args, step, tile, kv_head, page, last, target):
    """Copy a page's keys and values, up to position `last`, from the slots of a draft tree's path into scratch."""
    row, start, path = simd.load_int32(tile + ROW), simd.load_int32(tile + START), simd.load_int32(tile + PATH)
    to_values = target + args.key_bytes
    for place in range(min(PAGE, last + 1 - page * PAGE)):
        seen = page * PAGE + place
        if seen < start:
            slot = simd.load_int32(step.tables + row * step.table_stride + page * 4) * PAGE + place
        else:
            slot = simd.load_int32(step.paths + 4 * (path + seen - start))
        keys, values = page_in_place(args, kv_head, slot // PAGE)
        if kind is None:
            copy_halves(args, keys, values, slot % PAGE, target, to_values, place)
        else:
            copy_rounded(kind, args, keys, values, slot % PAGE, target, to_values, place)


@inline
def direct_page(args, step, tile, kv_head, page):
    """Addresses of the keys and values of a page of the sequence."""
    number = simd.load_int32(step.tables + simd.load_int32(tile + ROW) * step.table_stride + page * 4)
    return page_in_place(args, kv_head, number)


@inline
def is_fork(tile, page):
    """Whether the paths of a tile's tokens part within a page or before it."""
    return simd.load_int32(tile + PATH) >= 0 and (page + 1) * PAGE > simd.load_int32(tile + START)


@inline
def parts(tile, page):
    """Whether a tile's tokens see different positions of a page, all of them in it or in the spare page."""
    return is_fork(tile, page) and simd.load_int32(tile + GATHERS) == 0


@inline
def path_slot(step, tile, place, position):
    """The slot that the token at a place of a tile sees at a position from the tile's `start` on."""
    path = simd.load_int32(tile + PATH) + place * simd.load_int32(tile + PATH_INTS)
    return simd.load_int32(step.paths + 4 * (path + position - simd.load_int32(tile + START)))


@inline
def page_at(kind, args, step, tile, kv_head, page, last, target):
    """Addresses of a page's keys and values; a page that is not in place is gathered into `target`."""
    if is_fork(tile, page):
        gather_page(kind, args, step, tile, kv_head, page, last, target)
        return target, target + args.key_bytes
    return direct_page(args, step, tile, kv_head, page)


def copy_slots(kind: str | None) -> Callable[..., None]:
    """The function for a kind of rounded pages, or, if `kind` is None, for float16 pages."""

    def copy(layers, n_layers, sources, targets, count):
        for layer in range(n_layers):
            args = copied_layer_at(layers + layer * LAYER_BYTES)
            for place in range(count):
                source, target = simd.load_int32(sources + 4 * place), simd.load_int32(targets + 4 * place)
                for head in range(args.kv_heads):
                    keys, values = page_in_place(args, head, source // PAGE)
                    to_keys, to_values = page_in_place(args, head, target // PAGE)
                    if kind is None:
                        copy_halves(args, keys, values, source % PAGE, to_keys, to_values, target % PAGE)
                    else:
                        copy_rounded(kind, args, keys, values, source % PAGE, to_keys, to_values, target % PAGE)

    return copy
