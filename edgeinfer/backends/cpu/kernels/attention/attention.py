"""Attention over KV pages: softmax(cap(scale * query @ keys)) @ values, per query head.

Positions are cut into fixed chunks of CHUNK; each gives a partial result (largest score, sum, blend), and partials are
joined in order of position, after a sink if there is one, so the bits depend on the context alone. There are two ways
to share the work: small passes by (tile, kv head, chunk), with the joining in a second kernel; large ones by (tile, kv
head).

`kind` is None for float16 pages, and otherwise a literal, so that a kernel is compiled for its kind of pages alone.
Rounded pages hold rotated keys and values: queries are rotated before they are rounded, results after they are joined.
Scratch of a worker: queries, scores, scaled shares, partials and totals of `tile_rows` rows, then the gathered pages of
a chunk, and room for the keys or values of a page as float32: large passes convert float16 to it once for all rows of a
tile.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from edgeinfer.backends.cpu.kernels.attention import scores, scores_rounded
from edgeinfer.backends.cpu.kernels.attention.hadamard import rotate
from edgeinfer.backends.cpu.kernels.attention.rotary import step_at
from edgeinfer.backends.cpu.kernels.attention.slots import (
    FIRST,
    HIGHEST,
    LOWEST,
    N_TOKENS,
    SPARE,
    START,
    block_list,
    chunk_at,
    direct_page,
    first_chunk,
    first_of_tile,
    first_seen,
    is_fork,
    last_chunk,
    last_of_tile,
    last_seen,
    last_token,
    page_at,
    page_in_place,
    parts,
    path_slot,
)
from edgeinfer.backends.cpu.kernels.attention.softmax import (
    bend_scores,
    is_bent,
    join_rows,
    join_run,
    softmax_chunk,
    softmax_rows,
    start_total,
    store_largest_and_sum,
    write_result,
)
from edgeinfer.backends.cpu.kernels.work_split import is_mine, share_start
from edgeinfer.backends.cpu.layout.attention_records import ATTENTION
from edgeinfer.backends.cpu.layout.padding import BLOCK, CHUNK, CHUNK_PAGES, LANES, SCORE_BYTES
from edgeinfer.backends.cpu.layout.pages import GROUPS
from edgeinfer.backends.cpu.layout.step_records import TILE_INTS
from edgeinfer.graph.step import PAGE
from edgeinfer.jit import simd
from edgeinfer.jit.compiler import inline

arguments_at = simd.record_at(ATTENTION)


@inline
def load_queries(kind, args, tile, kv_head, scratch):
    """Store the scaled queries of a tile and kv head: float32[rows, key_padded], or int8 records in that room."""
    first, n_tokens = simd.load_int32(tile + FIRST), simd.load_int32(tile + N_TOKENS)
    repeats = args.heads // args.kv_heads
    for token in range(n_tokens):
        for repeat in range(repeats):
            head = kv_head * repeats + repeat
            source = args.query + (first + token) * args.query_stride + head * args.key_padded * 4
            target = scratch + (token * repeats + repeat) * args.key_padded * 4
            if kind is None:
                for index in range(0, args.key_padded * 4, 64):
                    simd.store(target + index, simd.mul(simd.load(source + index), simd.splat(args.scale)))
            else:
                scores_rounded.round_query(kind, source, args, target)


@inline
def score_page(kind, floats, isa, args, queries, rows, keys, ahead, wide, to):
    """Scores of a tile's rows over a page; `wide` has room for its keys or values as float32."""
    if kind is None:
        if scores.is_widened(floats):
            scores.widen(keys, GROUPS * args.key_width, wide)
            keys, ahead = wide, 0
        scores.score_page(floats, isa, queries, args.key_padded * 4, rows, keys, args.key_width, ahead, to)
    else:
        blocks = (args.key_width + BLOCK - 1) // BLOCK
        scores_rounded.score_page(kind, isa, queries, args.key_padded * 4, rows, keys, blocks, ahead, to)


@inline
def blend_page(kind, floats, isa, args, shares, rows, values, first, n_seen, scaled, ahead, wide, out, stride, adds):
    """Blend a page's positions first..n_seen-1 into the results of a tile's rows."""
    if kind is None:
        at, n_positions = values + first * args.value_padded * 2, n_seen - first
        if scores.is_widened(floats):
            scores.widen(at, n_positions * args.value_padded // LANES, wide)
            at, ahead = wide, 0
        of = shares + first * 4
        scores.blend_page(floats, isa, of, rows, at, args.value_padded, n_positions, ahead, out, stride, adds)
    else:
        both, width = (scaled, wide), args.value_padded
        scores_rounded.blend_page(kind, isa, shares, rows, values, width, first, n_seen, both, ahead, out, stride, adds)


@inline
def next_keys(args, step, following, part, values):
    """Distance from `values` to the keys of a part of the next chunk; 0 if it has no such part in place."""
    tile, kv_head, chunk = following
    page = chunk * CHUNK_PAGES + part
    if is_fork(tile, page) or page > simd.load_int32(tile + HIGHEST) // PAGE:
        return 0
    return direct_page(args, step, tile, kv_head, page)[0] - values


@inline
def attend_chunk(kind, floats, isa, args, step, tile, kv_head, chunk, scratch, gathered, following, out, stride):
    """Partial results of a tile's rows over one chunk: out float32[rows, stride / 4]; queries lie in scratch.

    `following`: the next tile, kv head and chunk, whose keys are prefetched while values are blended.
    """
    repeats = args.heads // args.kv_heads
    rows, start = simd.load_int32(tile + N_TOKENS) * repeats, chunk * CHUNK
    position, last = simd.load_int32(tile + LOWEST), last_of_tile(args, step, tile)
    first = first_of_tile(args, step, tile) - start
    n_seen, n_unseen = min(CHUNK, last + 1 - start), max(0, first)
    shares = scratch + args.tile_rows * args.key_padded * 4
    scaled = shares + args.tile_rows * SCORE_BYTES
    target, wide = gathered, gathered + CHUNK_PAGES * (args.key_bytes + args.value_bytes)
    for part in range(n_unseen // PAGE, (n_seen + PAGE - 1) // PAGE):
        keys, values = page_at(kind, args, step, tile, kv_head, chunk * CHUNK_PAGES + part, last, target)
        ahead = (values - keys) * args.ahead
        score_page(kind, floats, isa, args, scratch, rows, keys, ahead, wide, shares + part * PAGE * 4)
        target += args.key_bytes + args.value_bytes
    n_vectors = (n_seen + 15) // 16
    if is_bent(args):
        for row in range(rows):
            bend_row(args, step, tile, kv_head, row, start, shares + row * SCORE_BYTES, n_vectors)
    seen = last_seen(args, step, simd.load_int32(tile + FIRST), position) + 1 - start
    sees_alike = first_seen(args, step, last_token(tile), simd.load_int32(tile + HIGHEST)) <= start
    if args.full == 0:
        sees_alike = sees_alike and seen >= 16 * n_vectors
    else:
        sees_alike = sees_alike and seen >= n_seen
    if repeats == rows or sees_alike:
        for row in range(0, rows, 4):
            at, to = shares + row * SCORE_BYTES, out + row * stride
            softmax_rows(at, min(4, rows - row), first, seen, n_vectors, to, stride)
    else:
        for row in range(rows):
            share_out(
                args, step, tile, row // repeats, start, shares + row * SCORE_BYTES, n_vectors, out + row * stride
            )
    target, adds = gathered, np.int64(0)
    for part in range(n_unseen // PAGE, (n_seen + PAGE - 1) // PAGE):
        _keys, values = page_at(kind, args, step, tile, kv_head, chunk * CHUNK_PAGES + part, last, target)
        begin, end = max(0, n_unseen - part * PAGE), min(PAGE, n_seen - part * PAGE)
        at, ahead = shares + part * PAGE * 4, 0
        if args.ahead != 0:
            ahead = next_keys(args, step, following, part, values)
        to = out + 64
        blend_page(kind, floats, isa, args, at, rows, values, begin, end, scaled, ahead, wide, to, stride, adds)
        target += args.key_bytes + args.value_bytes
        adds = 1


@inline
def bend_row(args, step, tile, kv_head, row, start, scores_at, n_vectors):
    """`bend_scores` of a row of a tile, in the chunk from `start` on."""
    repeats = args.heads // args.kv_heads
    position = simd.load_int32(step.positions + 4 * (simd.load_int32(tile + FIRST) + row // repeats))
    bend_scores(args, kv_head * repeats + row % repeats, start - position, scores_at, n_vectors)


@inline
def share_out(args, step, tile, place, start, scores_at, n_vectors, out):
    """Turn a row's scores, for the token at a place of a tile, into shares; store their largest and sum."""
    token = simd.load_int32(tile + FIRST) + place
    position = simd.load_int32(step.positions + 4 * token)
    first, stop = first_seen(args, step, token, position) - start, last_seen(args, step, token, position) + 1 - start
    largest, total = softmax_chunk(scores_at, first, stop, n_vectors)
    store_largest_and_sum(out, largest, total)


@inline
def attend_fork(kind, floats, isa, args, step, tile, kv_head, chunk, scratch, gathered, out, stride):
    """`attend_chunk` where the paths of a tile's tokens part: shared positions are read once, then each token's path.

    Scores are computed for all positions of the table's page and of the spare page; a token uses those on its path.
    """
    repeats, n_tokens, start = args.heads // args.kv_heads, simd.load_int32(tile + N_TOKENS), chunk * CHUNK
    rows, forked = n_tokens * repeats, max(simd.load_int32(tile + START), start)
    shares = scratch + args.tile_rows * args.key_padded * 4
    others = shares + args.tile_rows * SCORE_BYTES
    wide, ahead = gathered + CHUNK_PAGES * (args.key_bytes + args.value_bytes), np.int64(0)
    keys, values = direct_page(args, step, tile, kv_head, chunk)
    spare, spare_values, to = simd.load_int32(tile + SPARE), values, shares
    for _page in range(2 if spare >= 0 else 1):
        score_page(kind, floats, isa, args, scratch, rows, keys, ahead, wide, to)
        if spare >= 0:
            keys, spare_values = page_in_place(args, kv_head, spare)
        to = others
    n_seen = min(CHUNK, simd.load_int32(tile + HIGHEST) + 1 - start)
    n_unseen = max(0, first_of_tile(args, step, tile) - start)
    for row in range(rows):
        at, last = shares + row * SCORE_BYTES, own_stop(step, tile, row // repeats, start)
        for position in range(forked, last):
            slot = path_slot(step, tile, row // repeats, position)
            if slot // PAGE == spare:
                score = simd.load_float(others + row * SCORE_BYTES + slot % PAGE * 4)
                simd.store_float(at + (position - start) * 4, score)
        if is_bent(args):
            bend_row(args, step, tile, kv_head, row, start, at, (n_seen + 15) // 16)
        share_out(args, step, tile, row // repeats, start, at, (n_seen + 15) // 16, out + row * stride)
    common, n_rows = max(n_unseen, forked - start), rows
    of, value, begin, end, to, adds = shares, values, n_unseen, common, out + 64, np.int64(0)
    for place in range(-1, n_tokens):  # first the positions that all rows see, then token by token those on its path
        position, last = forked, forked + 1
        if place >= 0:
            last, to = own_stop(step, tile, place, start), out + place * repeats * stride + 64
        while position < last:
            if place >= 0:
                slot = path_slot(step, tile, place, position)
                value = (spare_values if slot // PAGE == spare else values) + slot % PAGE * args.value_padded * 2
                of = shares + place * repeats * SCORE_BYTES + (position - start) * 4
                begin, end, n_rows, adds = np.int64(0), np.int64(1), repeats, np.int64(1)
            blend_page(kind, floats, isa, args, of, n_rows, value, begin, end, ahead, ahead, wide, to, stride, adds)
            position += 1


@inline
def own_stop(step, tile, place, start):
    """The end of the positions that the token at a place of a tile sees in the chunk from `start` on."""
    token = simd.load_int32(tile + FIRST) + place
    return min(simd.load_int32(step.positions + 4 * token) + 1, start + CHUNK)


@inline
def start_head(args, head, total):
    """Start a head's running result: empty except for its sink, which has a score and no value."""
    start_total(total, args.value_padded)
    if args.sinks != 0:
        store_largest_and_sum(total, simd.load_float(args.sinks + 4 * head), np.float32(1.0))


@inline
def attend_by_tile(kind, isa, args, step, worker, work_split):
    """Large passes: each task is a tile and a kv head, with all its chunks, or those chosen for it, in order."""
    repeats, stride = args.heads // args.kv_heads, (16 + args.value_padded) * 4
    scratch = args.scratch + worker * args.scratch_stride
    partials = scratch + args.tile_rows * (args.key_padded * 4 + 2 * SCORE_BYTES)
    totals = partials + args.tile_rows * stride
    gathered = totals + args.tile_rows * stride
    for task in range(step.n_tiles * args.kv_heads):
        if not is_mine(work_split, worker, task):
            continue
        kv_head = task % args.kv_heads
        tile = step.tiles + (step.n_tiles - 1 - task // args.kv_heads) * TILE_INTS * 4
        first, rows = simd.load_int32(tile + FIRST), simd.load_int32(tile + N_TOKENS) * repeats
        load_queries(kind, args, tile, kv_head, scratch)
        for row in range(rows):
            start_head(args, kv_head * repeats + row % repeats, totals + row * stride)
        chosen, begin = block_list(args, tile, kv_head), first_chunk(args, step, tile)
        n_chunks = last_chunk(args, step, tile) + 1 - begin
        if chosen != 0:
            n_chunks = np.int64(simd.load_int32(chosen))
        for place in range(n_chunks):
            chunk = chunk_at(chosen, begin, place)
            following = (tile, kv_head, chunk_at(chosen, begin, place + 1))
            if kind is None and parts(tile, chunk):
                attend_fork(kind, "f32", isa, args, step, tile, kv_head, chunk, scratch, gathered, partials, stride)
            else:
                attend_chunk(
                    kind, "f32", isa, args, step, tile, kv_head, chunk, scratch, gathered, following, partials, stride
                )
            join_rows(totals, partials, stride, rows, args.value_padded)
        for row in range(rows):
            head = kv_head * repeats + row % repeats
            out = args.out + (first + row // repeats) * args.out_stride + head * args.value_width * 4
            write_head(kind, args, totals + row * stride, out)


@inline
def split_task(args, step, task):
    """Tile, kv head and chunk of a task of a small pass."""
    chunk, rest = task % step.n_chunks, task // step.n_chunks
    return step.tiles + rest // args.kv_heads * TILE_INTS * 4, rest % args.kv_heads, chunk


@inline
def attend_by_chunk(kind, isa, args, step, worker, work_split):
    """Small passes, first half: each task is a tile, a kv head and a chunk; partials are stored."""
    repeats, stride = args.heads // args.kv_heads, (16 + args.value_padded) * 4
    scratch = args.scratch + worker * args.scratch_stride
    partials = scratch + args.tile_rows * (args.key_padded * 4 + 2 * SCORE_BYTES)
    gathered = partials + 2 * args.tile_rows * stride
    n_tasks, held = step.n_tiles * args.kv_heads * step.n_chunks, -1
    for task in range(share_start(work_split, worker, n_tasks), share_start(work_split, worker + 1, n_tasks)):
        tile, kv_head, chunk = split_task(args, step, task)
        if chunk < first_chunk(args, step, tile) or chunk > last_chunk(args, step, tile):
            continue
        if held != task // step.n_chunks:
            load_queries(kind, args, tile, kv_head, scratch)
            held = task // step.n_chunks
        following = split_task(args, step, min(task + 1, n_tasks - 1))
        if kind is None and parts(tile, chunk):
            attend_fork(kind, "f16", isa, args, step, tile, kv_head, chunk, scratch, gathered, partials, stride)
        else:
            attend_chunk(
                kind, "f16", isa, args, step, tile, kv_head, chunk, scratch, gathered, following, partials, stride
            )
        for row in range(simd.load_int32(tile + N_TOKENS) * repeats):
            head = kv_head * repeats + row % repeats
            token = simd.load_int32(tile + FIRST) + row // repeats
            kept = args.partials + ((token * args.heads + head) * args.max_chunks + chunk) * stride
            for index in range(0, stride, 64):
                simd.store(kept + index, simd.load(partials + row * stride + index))


@inline
def write_head(kind, args, total, out):
    """Write the result of a token and head; what was blended from rounded pages is rotated back."""
    if kind is not None:
        rotate(total + 64, args.value_padded, args.value_width, np.float32(1.0), total + 64)
    write_result(total, out, args.value_width)


@inline
def join_tokens(kind, args, step, worker, work_split):
    """Small passes, second half: each task is a token and a head, whose chunks' partials are joined in order."""
    stride = (16 + args.value_padded) * 4
    total = args.scratch + worker * args.scratch_stride
    n_tasks = step.n_tokens * args.heads
    for task in range(share_start(work_split, worker, n_tasks), share_start(work_split, worker + 1, n_tasks)):
        token, head = task // args.heads, task % args.heads
        position = simd.load_int32(step.positions + 4 * token)
        start_head(args, head, total)
        chunk = max(0, first_seen(args, step, token, position)) // CHUNK
        kept = args.partials + ((token * args.heads + head) * args.max_chunks + chunk) * stride
        last = last_seen(args, step, token, position)
        join_run(total, kept, stride, last // CHUNK + 1 - chunk, args.value_padded)
        write_head(kind, args, total, args.out + token * args.out_stride + head * args.value_width * 4)


def joining(kind: str | None) -> Callable[..., None]:
    """The second kernel of small passes; the same for all kinds of rounded pages."""

    def join_chunks(pointer, worker, work_split):
        args = arguments_at(pointer)
        step = step_at(args.step)
        if step.split != 0:
            join_tokens(kind, args, step, worker, work_split)

    return join_chunks


def by_tile(kind: str | None, isa: str) -> Callable[..., None]:
    """The kernel of large passes, for a kind of pages and an instruction set."""

    def attend_tiles(pointer, worker, work_split):
        args = arguments_at(pointer)
        step = step_at(args.step)
        if step.split == 0:
            attend_by_tile(kind, isa, args, step, worker, work_split)

    return attend_tiles


def by_chunk(kind: str | None, isa: str) -> Callable[..., None]:
    """The first kernel of small passes; `joining` gives the second."""

    def attend_chunks(pointer, worker, work_split):
        args = arguments_at(pointer)
        step = step_at(args.step)
        if step.split != 0:
            attend_by_chunk(kind, isa, args, step, worker, work_split)

    return attend_chunks
