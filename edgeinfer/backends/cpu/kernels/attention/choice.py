"""Choosing chunks within budgets: summaries of pages, scores of chunks, and the lists that attention then follows.

The twins are in `graph.budget`. Memory: a summary float16[2, key_padded] of a page and kv head, the highest number of
each column, then the lowest, both drawn towards their middle. For the tokens of a pass, ranks int32[T, G, max_chunks]:
the place of a chunk among those that a token sees, -1 for the others; before that, float32 scores. For its tiles, lists
int32[n_tiles, G, 1 + max_chunks]: how many chunks any of their tokens sees, then these in order; -1 in place of the
number: all tokens see everything, and there are no ranks (not in small passes). Scratch of a worker: queries float32[H
/ G, 2, key_padded], their parts above and below zero; then a heap of the best chunks so far, float32[max_chunks] and
int32[max_chunks], the worst of them first.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numba import types
from numba.extending import intrinsic

from edgeinfer.backends.cpu.kernels.attention.forms import has_small_keys
from edgeinfer.backends.cpu.kernels.attention.hadamard import rotate
from edgeinfer.backends.cpu.kernels.attention.rotary import step_at
from edgeinfer.backends.cpu.kernels.attention.slots import FIRST, HIGHEST, N_TOKENS, ROW, page_in_place
from edgeinfer.backends.cpu.kernels.work_split import share_start
from edgeinfer.backends.cpu.layout.attention_records import ATTENTION, SUMMARISE, SUMMARISED_LAYER
from edgeinfer.backends.cpu.layout.padding import BLOCK, CHUNK
from edgeinfer.backends.cpu.layout.step_records import TILE_INTS
from edgeinfer.backends.meanings import MIDDLE
from edgeinfer.graph.budget import FAR_EDGE, NEAR_EDGE
from edgeinfer.graph.step import PAGE
from edgeinfer.jit import emit, simd
from edgeinfer.jit.compiler import inline

arguments_at, summarising_at = simd.record_at(ATTENTION), simd.record_at(SUMMARISE)
layer_at = simd.record_at(SUMMARISED_LAYER)
LAYER_BYTES = SUMMARISED_LAYER.itemsize
LARGEST_HALF = 65504.0
SCORES_AHEAD = 8
"""Chunks between the one that is scored and the one whose summary is prefetched."""


@simd.operation(simd.FLOATS, simd.ADDRESS, simd.INT, simd.INT)
def codes(builder, address, shift, mask):
    """Codes of 16 positions, in int32[16] from bit `shift` on, as float32."""
    words = emit.load(builder, address, emit.I32S, align=4)
    moved = builder.lshr(words, emit.splat(builder, builder.trunc(shift, emit.I32)))
    return builder.uitofp(builder.and_(moved, emit.splat(builder, builder.trunc(mask, emit.I32))), emit.F32S)


@inline
def store_edges(one, two, three, four, highest, lowest):
    """Write the largest and the smallest of 64 numbers, drawn towards each other (`graph.budget`), as float16."""
    zero, limit = simd.splat(np.float32(0.0)), np.float32(LARGEST_HALF)
    most = simd.max_lanes(simd.maximum(simd.maximum(one, two), simd.maximum(three, four)))
    low = simd.maximum(simd.sub(zero, one), simd.sub(zero, two))
    least = -simd.max_lanes(simd.maximum(low, simd.maximum(simd.sub(zero, three), simd.sub(zero, four))))
    most, least = min(max(most, -limit), limit), min(max(least, -limit), limit)
    near, far = np.float32(NEAR_EDGE), np.float32(FAR_EDGE)
    simd.store_half(highest, most * near + least * far)
    simd.store_half(lowest, most * far + least * near)


@inline
def summarise_halves(keys, width, highest, lowest):
    """Summarise float16 keys."""
    for column in range(width):
        at = keys + column * PAGE * 2
        one, two = simd.load_halves(at), simd.load_halves(at + 32)
        three, four = simd.load_halves(at + 64), simd.load_halves(at + 96)
        store_edges(one, two, three, four, highest + 2 * column, lowest + 2 * column)


@inline
def summarise_rounded(kind, keys, width, highest, lowest):
    """Summarise rounded keys, which are rotated."""
    block_bytes, n_scales, n_bits, mask, middle = BLOCK, 1, 8, 255, np.float32(128.0)
    if has_small_keys(kind):
        block_bytes, n_scales, n_bits, mask, middle = BLOCK // 2, 2, 4, 15, np.float32(MIDDLE)
    scales, middles = keys + PAGE * block_bytes * ((width + BLOCK - 1) // BLOCK), simd.splat(middle)
    for column in range(width):
        block, place = column // BLOCK, column % BLOCK
        half, byte = place // block_bytes, place % block_bytes
        at = keys + block * PAGE * block_bytes + byte // 4 * PAGE * 4
        shift, factors = byte % 4 * 8 + half * n_bits, scales + (block * n_scales + half) * PAGE * 2
        one = simd.mul(simd.sub(codes(at, shift, mask), middles), simd.load_halves(factors))
        two = simd.mul(simd.sub(codes(at + 64, shift, mask), middles), simd.load_halves(factors + 32))
        three = simd.mul(simd.sub(codes(at + 128, shift, mask), middles), simd.load_halves(factors + 64))
        four = simd.mul(simd.sub(codes(at + 192, shift, mask), middles), simd.load_halves(factors + 96))
        store_edges(one, two, three, four, highest + 2 * column, lowest + 2 * column)


def summarising(kind: str | None) -> Callable[..., None]:
    """The kernel for a kind of pages: each task is a layer and a page."""

    def summarise(pointer, worker, work_split):
        args = summarising_at(pointer)
        n_tasks = args.n_layers * args.n_pages
        for task in range(share_start(work_split, worker, n_tasks), share_start(work_split, worker + 1, n_tasks)):
            layer = layer_at(args.layers + task // args.n_pages * LAYER_BYTES)
            page = simd.load_int32(args.pages + task % args.n_pages * 4)
            first = layer.summaries + simd.load_int32(layer.places + 4 * page) * layer.key_padded * 4
            for head in range(layer.kv_heads):
                keys, _values = page_in_place(layer, head, page)
                highest = first + head * layer.summary_stride
                lowest = highest + layer.key_padded * 2
                if kind is None:
                    summarise_halves(keys, layer.key_width, highest, lowest)
                else:
                    summarise_rounded(kind, keys, layer.key_width, highest, lowest)

    return summarise


@inline
def cut_query(rotates, args, token, head, target):
    """Write the parts of a scaled query that are above and below zero: float32[2, key_padded]."""
    source, zero = args.query + token * args.query_stride + head * args.key_padded * 4, simd.splat(np.float32(0.0))
    if rotates is None:
        for index in range(0, args.key_padded * 4, 64):
            simd.store(target + index, simd.mul(simd.load(source + index), simd.splat(args.scale)))
    else:
        rotate(source, args.key_padded, args.key_width, args.scale, target)
    for index in range(target, target + args.key_padded * 4, 64):
        value = simd.load(index)
        simd.store(index, simd.maximum(value, zero))
        simd.store(index + args.key_padded * 4, simd.sub(zero, simd.maximum(simd.sub(zero, value), zero)))


@intrinsic(prefer_literal=True)
def score_rows(context, rows, queries, n_vectors, summary):
    """The most that any of 1 to 4 queries, one after the other, may find in a chunk."""
    size = rows.literal_value

    def generate(context, builder, signature, values):
        _, queries, n_vectors, summary = values
        stride = builder.mul(n_vectors, emit.integer(64))
        starts = [builder.add(queries, builder.mul(stride, emit.integer(row))) for row in range(size)]

        def body(index, sums):
            edges = emit.load_halves(builder, builder.add(summary, builder.mul(index, emit.integer(32))))
            at = builder.mul(index, emit.integer(64))
            own = [emit.load_floats(builder, builder.add(start, at)) for start in starts]
            return [emit.fma(builder, query, edges, total) for query, total in zip(own, sums, strict=True)]

        sums = emit.loop(builder, n_vectors, [emit.repeated(emit.F32S, 0.0)] * size, body)
        best, *others = [emit.halve(builder, total, builder.fadd) for total in sums]
        for other in others:
            best = builder.select(builder.fcmp_ordered(">", other, best), other, best)
        return best

    return types.float32(rows, *[types.intp] * 3), generate


@inline
def score(args, queries, repeats, summary):
    """The most that any query may find in a chunk."""
    n_vectors, row, best = args.key_padded // 8, 0, np.float32(-np.inf)
    while row < repeats:
        at, left = queries + row * args.key_padded * 8, repeats - row
        if left >= 4:
            best = max(best, score_rows(4, at, n_vectors, summary))
        elif left == 3:
            best = max(best, score_rows(3, at, n_vectors, summary))
        elif left == 2:
            best = max(best, score_rows(2, at, n_vectors, summary))
        else:
            best = max(best, score_rows(1, at, n_vectors, summary))
        row += 4
    return best


@inline
def is_worse(scores, chunks, one, other):
    """Whether the chunk at a place of the heap scores lower than the one at another, or comes earlier."""
    first, second = simd.load_float(scores + 4 * one), simd.load_float(scores + 4 * other)
    return first < second or (
        first == second and simd.load_int32(chunks + 4 * one) < simd.load_int32(chunks + 4 * other)
    )


@inline
def sink(scores, chunks, place, count):
    """Move the chunk at a place of the heap down to where all below it are better."""
    while 2 * place + 1 < count:
        worst = 2 * place + 1
        if worst + 1 < count and is_worse(scores, chunks, worst + 1, worst):
            worst += 1
        if not is_worse(scores, chunks, worst, place):
            break
        upper, chunk = simd.load_float(scores + 4 * place), simd.load_int32(chunks + 4 * place)
        simd.store_float(scores + 4 * place, simd.load_float(scores + 4 * worst))
        simd.store_int32(chunks + 4 * place, simd.load_int32(chunks + 4 * worst))
        simd.store_float(scores + 4 * worst, upper)
        simd.store_int32(chunks + 4 * worst, chunk)
        place = worst


@inline
def ranks_of(args, token, kv_head):
    """The ranks of a token and kv head by chunk; scores before there are ranks."""
    return args.ranks + (token * args.kv_heads + kv_head) * args.max_chunks * 4


@inline
def score_share(args, step, tile, kv_head, queries, first, stop, scores):
    """Write the scores of chunks from `first` to before `stop`."""
    repeats, n_bytes = args.heads // args.kv_heads, args.key_padded * 4
    table = step.tables + simd.load_int32(tile + ROW) * step.table_stride
    summaries = args.summaries + kv_head * args.summary_stride
    for chunk in range(first, stop):
        if chunk + SCORES_AHEAD < stop:
            ahead = simd.load_int32(args.places + 4 * simd.load_int32(table + 4 * (chunk + SCORES_AHEAD)))
            for index in range(0, n_bytes, 64):
                simd.prefetch(summaries + ahead * n_bytes + index)
        place = simd.load_int32(args.places + 4 * simd.load_int32(table + 4 * chunk))
        simd.store_float(scores + 4 * chunk, score(args, queries, repeats, summaries + place * n_bytes))


@inline
def find_best(recent, count, found, scores, chunks):
    """Write the `count` best chunks from 1 up to `recent`, of which there are more, into the heap."""
    last = np.int64(count)
    for chunk in range(1, recent):
        each = simd.load_float(found + 4 * chunk)
        if chunk <= last:
            simd.store_float(scores + 4 * chunk - 4, each)
            simd.store_int32(chunks + 4 * chunk - 4, chunk)
            if chunk == last:
                for upper in range(last // 2):
                    sink(scores, chunks, last // 2 - 1 - upper, last)
        elif each >= simd.load_float(scores):
            simd.store_float(scores, each)
            simd.store_int32(chunks, chunk)
            sink(scores, chunks, np.int64(0), last)


@inline
def rank_chunks(args, step, tile, token, kv_head, scratch):
    """Rank the chunks that a token sees."""
    own, ranks = simd.load_int32(step.positions + 4 * token) // CHUNK, ranks_of(args, token, kv_head)
    recent, count = simd.load_int32(step.recents + 4 * token), simd.load_int32(step.n_best + 4 * token)
    chunks = scratch + args.max_chunks * 4
    if count > 0:
        find_best(recent, count, ranks, scratch, chunks)
    for chunk in range(1, recent):
        simd.store_int32(ranks + 4 * chunk, -1)
    for place in range(count):
        simd.store_int32(ranks + 4 * simd.load_int32(chunks + 4 * place), 0)
    rank = 0
    for chunk in range(own + 1):
        if chunk == 0 or chunk >= recent or simd.load_int32(ranks + 4 * chunk) == 0:
            simd.store_int32(ranks + 4 * chunk, rank)
            rank += 1
    for chunk in range(own + 1, simd.load_int32(tile + HIGHEST) // CHUNK + 1):
        simd.store_int32(ranks + 4 * chunk, -1)


@inline
def list_chunks(args, tile, kv_head, listed):
    """List the chunks that any token of a tile sees."""
    first, count = simd.load_int32(tile + FIRST), 0
    for chunk in range(simd.load_int32(tile + HIGHEST) // CHUNK + 1):
        is_seen = False
        for token in range(first, first + simd.load_int32(tile + N_TOKENS)):
            is_seen = is_seen or simd.load_int32(ranks_of(args, token, kv_head) + 4 * chunk) >= 0
        if is_seen:
            count += 1
            simd.store_int32(listed + 4 * count, chunk)
    simd.store_int32(listed, count)


@inline
def has_budget(step, tile):
    """Whether a token of a tile does not see everything."""
    first, found = simd.load_int32(tile + FIRST), False
    for token in range(first, first + simd.load_int32(tile + N_TOKENS)):
        found = found or simd.load_int32(step.recents + 4 * token) > 0
    return found


def scoring(rotates: str | None) -> Callable[..., None]:
    """The first kernel: workers share the chunks to score of every token. `rotates`: None for float16 pages."""

    def score_chunks(pointer, worker, work_split):
        args = arguments_at(pointer)
        step = step_at(args.step)
        repeats, queries = args.heads // args.kv_heads, args.choice + worker * args.choice_stride
        for task in range(step.n_tiles * args.kv_heads):
            tile, kv_head = step.tiles + task // args.kv_heads * TILE_INTS * 4, task % args.kv_heads
            first = simd.load_int32(tile + FIRST)
            for token in range(first, first + simd.load_int32(tile + N_TOKENS)):
                n_scored = simd.load_int32(step.recents + 4 * token) - 1
                if simd.load_int32(step.n_best + 4 * token) == 0:
                    continue
                for row in range(repeats):
                    target = queries + row * args.key_padded * 8
                    cut_query(rotates, args, token, kv_head * repeats + row, target)
                begin = 1 + share_start(work_split, worker, n_scored)
                stop = 1 + share_start(work_split, worker + 1, n_scored)
                score_share(args, step, tile, kv_head, queries, begin, stop, ranks_of(args, token, kv_head))

    return score_chunks


def choose_chunks(pointer, worker, work_split):
    """The second kernel: each task is a tile and a kv head, whose chunks are ranked and listed."""
    args = arguments_at(pointer)
    step = step_at(args.step)
    n_tasks, scratch = step.n_tiles * args.kv_heads, args.choice + worker * args.choice_stride
    for task in range(share_start(work_split, worker, n_tasks), share_start(work_split, worker + 1, n_tasks)):
        tile, kv_head = step.tiles + task // args.kv_heads * TILE_INTS * 4, task % args.kv_heads
        listed = args.lists + task * (1 + args.max_chunks) * 4
        if step.split == 0 and not has_budget(step, tile):
            simd.store_int32(listed, -1)
            continue
        first = simd.load_int32(tile + FIRST)
        for token in range(first, first + simd.load_int32(tile + N_TOKENS)):
            rank_chunks(args, step, tile, token, kv_head, scratch)
        list_chunks(args, tile, kv_head, listed)
