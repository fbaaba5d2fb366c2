"""Attention over KV pages: softmax(cap(scale * query @ keys)) @ values, per query head.

Positions are cut into chunks of CHUNK, always the same; each gives a partial result (largest score, sum, blend) and
partials are joined in order of position, so the bits depend on the context alone. Two ways to share the work: small
passes by (tile, kv head, chunk) with the joining in a second kernel, large ones by (tile, kv head).

A partial is float32[16 + head_padded]: largest, sum, padding, blend. Scratch of a worker: queries, scores, partials
and sums of `tile_rows` rows, then the gathered key and value pages of a chunk.
"""

from __future__ import annotations

import numpy as np
from numba import carray

from edgeinfer.backends.base import PAGE
from edgeinfer.backends.cpu import simd
from edgeinfer.backends.cpu.jit import Kernel, inline
from edgeinfer.backends.cpu.kernels.crew import is_mine, share_start
from edgeinfer.backends.cpu.kernels.rotary import step_at
from edgeinfer.backends.cpu.kernels.scores import (
    LOWEST,
    SCORE_BYTES,
    blend_page,
    cap_scores,
    score_page,
    softmax_chunk,
)
from edgeinfer.backends.cpu.layout import CHUNK
from edgeinfer.backends.cpu.step import TILE_INTS

ARGUMENTS = np.dtype(
    [
        ("query", "i8"),
        ("query_stride", "i8"),
        ("out", "i8"),
        ("out_stride", "i8"),
        ("keys", "i8"),  # float16[n_pages, G, head_width, PAGE]
        ("values", "i8"),  # float16[n_pages, G, PAGE, head_padded]
        ("heads", "i8"),
        ("kv_heads", "i8"),
        ("head_width", "i8"),
        ("head_padded", "i8"),
        ("window", "i8"),  # positions a token sees, itself included
        ("scratch", "i8"),
        ("scratch_stride", "i8"),  # bytes between workers
        ("tile_rows", "i8"),
        ("ahead", "i8"),  # 1: ask for keys and values early
        ("gathered_bytes", "i8"),  # of a gathered page
        ("partials", "i8"),  # float32[T, H, max_chunks, 16 + head_padded]
        ("max_chunks", "i8"),
        ("step", "i8"),
        ("scale", "f4"),
        ("cap", "f4"),  # 0: none
    ]
)

CHUNK_PAGES = CHUNK // PAGE


def scratch_bytes(tile_rows: int, head_width: int, head_padded: int) -> int:
    """Bytes of scratch one worker needs."""
    rows = tile_rows * (head_padded * 4 + SCORE_BYTES + 2 * (16 + head_padded) * 4)
    return rows + CHUNK_PAGES * gathered_bytes(head_width, head_padded)


def gathered_bytes(head_width: int, head_padded: int) -> int:
    """Bytes of the keys and values of one page and kv head."""
    return PAGE * 2 * (head_width + head_padded)


@inline
def load_queries(args, tile, kv_head, scratch):
    """Copy the scaled queries of a tile and kv head: float32[tokens * heads per kv head, head_padded]."""
    first, n_tokens = simd.load_int32(tile), simd.load_int32(tile + 4)
    repeats = args.heads // args.kv_heads
    scale = simd.splat(args.scale)
    for token in range(n_tokens):
        for repeat in range(repeats):
            head = kv_head * repeats + repeat
            source = args.query + (first + token) * args.query_stride + head * args.head_padded * 4
            target = scratch + (token * repeats + repeat) * args.head_padded * 4
            for index in range(0, args.head_padded * 4, 64):
                simd.store(target + index, simd.mul(simd.load(source + index), scale))


@inline
def gather_page(args, step, tile, kv_head, page, last, target):
    """Copy a page's keys and values, up to position `last`, from the slots of a draft tree's path into scratch."""
    row, start, path = simd.load_int32(tile + 8), simd.load_int32(tile + 12), simd.load_int32(tile + 16)
    values_at = target + args.head_width * PAGE * 2
    for place in range(min(PAGE, last + 1 - page * PAGE)):
        seen = page * PAGE + place
        if seen < start:
            slot = simd.load_int32(step.tables + row * step.table_stride + page * 4) * PAGE + place
        else:
            slot = simd.load_int32(step.paths + 4 * (path + seen - start))
        head = slot // PAGE * args.kv_heads + kv_head
        keys = args.keys + (head * args.head_width * PAGE + slot % PAGE) * 2
        values = args.values + (head * PAGE + slot % PAGE) * args.head_padded * 2
        for index in range(args.head_width):
            simd.copy_2_bytes(target + (index * PAGE + place) * 2, keys + index * PAGE * 2)
        for index in range(0, args.head_padded * 2, 32):
            simd.copy_16_bytes(values_at + place * args.head_padded * 2 + index, values + index)
            simd.copy_16_bytes(values_at + place * args.head_padded * 2 + index + 16, values + index + 16)


@inline
def direct_page(args, step, tile, kv_head, page):
    """Addresses of the keys and values of a page of the sequence."""
    number = simd.load_int32(step.tables + simd.load_int32(tile + 8) * step.table_stride + page * 4)
    place = number * args.kv_heads + kv_head
    return args.keys + place * args.head_width * PAGE * 2, args.values + place * args.head_padded * PAGE * 2


@inline
def page_at(args, step, tile, kv_head, page, last, target):
    """Addresses of a page's keys and values; what lies elsewhere is gathered into `target`."""
    if simd.load_int32(tile + 16) >= 0 and (page + 1) * PAGE > simd.load_int32(tile + 12):
        gather_page(args, step, tile, kv_head, page, last, target)
        return target, target + args.head_width * PAGE * 2
    return direct_page(args, step, tile, kv_head, page)


@inline
def attend_chunk(args, step, tile, kv_head, chunk, scratch, gathered, out, stride):
    """Partial results of a tile's rows over one chunk: out float32[rows, stride / 4]; queries lie in scratch."""
    first, n_tokens = simd.load_int32(tile), simd.load_int32(tile + 4)
    repeats = args.heads // args.kv_heads
    rows, start = n_tokens * repeats, chunk * CHUNK
    position = simd.load_int32(step.positions + 4 * first)
    last = position + n_tokens - 1
    n_seen, n_unseen = min(CHUNK, last + 1 - start), max(0, position + 1 - args.window - start)
    scores = scratch + args.tile_rows * args.head_padded * 4
    target = gathered
    for part in range(n_unseen // PAGE, (n_seen + PAGE - 1) // PAGE):
        keys, values = page_at(args, step, tile, kv_head, chunk * CHUNK_PAGES + part, last, target)
        keys_ahead = 0
        if args.ahead != 0 and simd.load_int32(tile + 16) < 0 and chunk * CHUNK_PAGES + part < last // PAGE:
            keys_ahead = direct_page(args, step, tile, kv_head, chunk * CHUNK_PAGES + part + 1)[0] - keys
        to = scores + part * PAGE * 4
        score_page(scratch, args.head_padded * 4, rows, keys, args.head_width, values - keys, keys_ahead, to)
        target += args.gathered_bytes
    n_vectors = (n_seen + 15) // 16
    for row in range(rows):
        seen = position + row // repeats + 1 - start
        if args.cap != np.float32(0.0):
            cap_scores(scores + row * SCORE_BYTES, args.cap, n_vectors)
        largest, total = softmax_chunk(scores + row * SCORE_BYTES, seen - args.window, seen, n_vectors)
        simd.store_float(out + row * stride, largest)
        simd.store_float(out + row * stride + 4, total)
    target, adds = gathered, 0
    for part in range(n_unseen // PAGE, (n_seen + PAGE - 1) // PAGE):
        _keys, values = page_at(args, step, tile, kv_head, chunk * CHUNK_PAGES + part, last, target)
        begin, end = max(0, n_unseen - part * PAGE), min(PAGE, n_seen - part * PAGE)
        shares = scores + (part * PAGE + begin) * 4
        values += begin * args.head_padded * 2
        blend_page(shares, rows, values, args.head_padded, end - begin, out + 64, stride, adds)
        target += args.gathered_bytes
        adds = 1


@inline
def join_partial(total, partial, head_padded):
    """Add a later page's partial to the running one; a partial without any position changes nothing."""
    before, new = simd.load_float(total), simd.load_float(partial)
    largest = max(before, new)
    keep, take = simd.exp(simd.splat(before - largest)), simd.exp(simd.splat(new - largest))
    share = simd.mul(simd.splat(simd.load_float(total + 4)), keep)
    simd.store(total, simd.fma(simd.splat(simd.load_float(partial + 4)), take, share))
    simd.store_float(total + 4, simd.load_float(total))
    simd.store_float(total, largest)
    for index in range(64, 64 + head_padded * 4, 64):
        kept = simd.mul(simd.load(total + index), keep)
        simd.store(total + index, simd.fma(simd.load(partial + index), take, kept))


@inline
def start_total(total, head_padded):
    """An empty running result."""
    for index in range(0, 64 + head_padded * 4, 64):
        simd.store(total + index, simd.splat(np.float32(0.0)))
    simd.store_float(total, np.float32(LOWEST))


@inline
def write_result(total, out, head_width):
    """out[k] = blend / sum, for the head's real width."""
    inverse = np.float32(1.0) / simd.load_float(total + 4)
    whole = head_width // 16 * 16
    for index in range(0, whole * 4, 64):
        simd.store(out + index, simd.mul(simd.load(total + 64 + index), simd.splat(inverse)))
    for index in range(whole * 4, head_width * 4, 4):
        simd.store_float(out + index, simd.load_float(total + 64 + index) * inverse)


@inline
def first_chunk(args, step, tile):
    """The first chunk that any token of a tile sees."""
    position = simd.load_int32(step.positions + 4 * simd.load_int32(tile))
    return max(0, position + 1 - args.window) // CHUNK


@inline
def last_chunk(step, tile):
    """The chunk of the last token of a tile."""
    last = simd.load_int32(tile) + simd.load_int32(tile + 4) - 1
    return simd.load_int32(step.positions + 4 * last) // CHUNK


def attend_by_tile(pointer, worker, crew):
    """Large passes: each task is a tile and a kv head, all its chunks in order."""
    args = carray(pointer, 1)[0]
    step = carray(step_at(args.step), 1)[0]
    if step.split != 0:
        return
    repeats, stride = args.heads // args.kv_heads, (16 + args.head_padded) * 4
    scratch = args.scratch + worker * args.scratch_stride
    partials = scratch + args.tile_rows * (args.head_padded * 4 + SCORE_BYTES)
    totals = partials + args.tile_rows * stride
    gathered = totals + args.tile_rows * stride
    for task in range(step.n_tiles * args.kv_heads):
        if not is_mine(crew, worker, task):
            continue
        kv_head = task % args.kv_heads
        tile = step.tiles + (step.n_tiles - 1 - task // args.kv_heads) * TILE_INTS * 4
        first, rows = simd.load_int32(tile), simd.load_int32(tile + 4) * repeats
        load_queries(args, tile, kv_head, scratch)
        for row in range(rows):
            start_total(totals + row * stride, args.head_padded)
        for chunk in range(first_chunk(args, step, tile), last_chunk(step, tile) + 1):
            attend_chunk(args, step, tile, kv_head, chunk, scratch, gathered, partials, stride)
            for row in range(rows):
                join_partial(totals + row * stride, partials + row * stride, args.head_padded)
        for row in range(rows):
            head = kv_head * repeats + row % repeats
            out = args.out + (first + row // repeats) * args.out_stride + head * args.head_width * 4
            write_result(totals + row * stride, out, args.head_width)


def attend_by_chunk(pointer, worker, crew):
    """Small passes, first half: each task is a tile, a kv head and a chunk; partials are kept."""
    args = carray(pointer, 1)[0]
    step = carray(step_at(args.step), 1)[0]
    if step.split == 0:
        return
    repeats, stride = args.heads // args.kv_heads, (16 + args.head_padded) * 4
    scratch = args.scratch + worker * args.scratch_stride
    partials = scratch + args.tile_rows * (args.head_padded * 4 + SCORE_BYTES)
    gathered = partials + 2 * args.tile_rows * stride
    n_tasks = step.n_tiles * args.kv_heads * step.n_chunks
    for task in range(share_start(crew, worker, n_tasks), share_start(crew, worker + 1, n_tasks)):
        chunk, rest = task % step.n_chunks, task // step.n_chunks
        kv_head = rest % args.kv_heads
        tile = step.tiles + rest // args.kv_heads * TILE_INTS * 4
        if chunk < first_chunk(args, step, tile) or chunk > last_chunk(step, tile):
            continue
        load_queries(args, tile, kv_head, scratch)
        attend_chunk(args, step, tile, kv_head, chunk, scratch, gathered, partials, stride)
        for row in range(simd.load_int32(tile + 4) * repeats):
            head = kv_head * repeats + row % repeats
            token = simd.load_int32(tile) + row // repeats
            kept = args.partials + ((token * args.heads + head) * args.max_chunks + chunk) * stride
            for index in range(0, stride, 64):
                simd.store(kept + index, simd.load(partials + row * stride + index))


def join_chunks(pointer, worker, crew):
    """Small passes, second half: each task is a token and a head, its chunks' partials joined in order."""
    args = carray(pointer, 1)[0]
    step = carray(step_at(args.step), 1)[0]
    if step.split == 0:
        return
    stride = (16 + args.head_padded) * 4
    total = args.scratch + worker * args.scratch_stride
    n_tasks = step.n_tokens * args.heads
    for task in range(share_start(crew, worker, n_tasks), share_start(crew, worker + 1, n_tasks)):
        token, head = task // args.heads, task % args.heads
        position = simd.load_int32(step.positions + 4 * token)
        start_total(total, args.head_padded)
        for chunk in range(max(0, position + 1 - args.window) // CHUNK, position // CHUNK + 1):
            kept = args.partials + ((token * args.heads + head) * args.max_chunks + chunk) * stride
            join_partial(total, kept, args.head_padded)
        write_result(total, args.out + token * args.out_stride + head * args.head_width * 4, args.head_width)


BY_TILE = Kernel("attend_by_tile", attend_by_tile, ARGUMENTS)
BY_CHUNK = Kernel("attend_by_chunk", attend_by_chunk, ARGUMENTS)
JOIN_CHUNKS = Kernel("join_chunks", join_chunks, ARGUMENTS)
