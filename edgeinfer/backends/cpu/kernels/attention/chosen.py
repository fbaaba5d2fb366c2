"""Attention to the chunks that `choice` has listed: `attention` with lists in place of runs of chunks.

A chunk's partial results are the same bits as without budgets, and a token's are joined in order of position, so a
token that sees everything gets the same result. Small passes keep a token's partials by rank, side by side.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from edgeinfer.backends.cpu.kernels.attention.attention import (
    arguments_at,
    attend_chunk,
    attend_fork,
    load_queries,
    start_head,
    write_head,
)
from edgeinfer.backends.cpu.kernels.attention.rotary import step_at
from edgeinfer.backends.cpu.kernels.attention.slots import FIRST, N_TOKENS, block_list, chunk_at, last_chunk, parts
from edgeinfer.backends.cpu.kernels.attention.softmax import join_rows, join_run
from edgeinfer.backends.cpu.kernels.work_split import is_mine, share_start
from edgeinfer.backends.cpu.layout.padding import CHUNK, SCORE_BYTES
from edgeinfer.backends.cpu.layout.step_records import TILE_INTS
from edgeinfer.jit import simd
from edgeinfer.jit.compiler import inline


@inline
def list_at(args, pair):
    """The list of a tile and kv head."""
    return args.lists + pair * (1 + args.max_chunks) * 4


@inline
def listed(args, pair, place):
    """The chunk at a place of a list."""
    found = np.int64(place)
    if simd.load_int32(list_at(args, pair)) >= 0:
        found = simd.load_int32(list_at(args, pair) + 4 + 4 * place)
    return found


@inline
def rank_at(args, token, kv_head, chunk):
    """The rank of a chunk among those that a token sees; -1: it does not see it."""
    return simd.load_int32(args.ranks + ((token * args.kv_heads + kv_head) * args.max_chunks + chunk) * 4)


@inline
def attend_tile(kind, isa, args, step, tile, pair, scratch, stride):
    """Totals of a tile's rows over the listed chunks, in order."""
    repeats, kv_head = args.heads // args.kv_heads, pair % args.kv_heads
    partials = scratch + args.tile_rows * (args.key_padded * 4 + 2 * SCORE_BYTES)
    totals = partials + args.tile_rows * stride
    gathered = totals + args.tile_rows * stride
    first, n_tokens = simd.load_int32(tile + FIRST), simd.load_int32(tile + N_TOKENS)
    load_queries(kind, args, tile, kv_head, scratch)
    for row in range(n_tokens * repeats):
        start_head(args, kv_head * repeats + row % repeats, totals + row * stride)
    count, block = simd.load_int32(list_at(args, pair)), block_list(args, tile, kv_head)
    own, n_listed = (list_at(args, pair), np.int64(count)) if count >= 0 else (block, last_chunk(args, step, tile) + 1)
    if count < 0 and block != 0:
        n_listed = np.int64(simd.load_int32(block))
    for place in range(n_listed):
        chunk, following = chunk_at(own, 0, place), (tile, kv_head, chunk_at(own, 0, min(place + 1, n_listed - 1)))
        if kind is None and parts(tile, chunk):
            attend_fork(kind, "f32", isa, args, step, tile, kv_head, chunk, scratch, gathered, partials, stride)
        else:
            attend_chunk(
                kind, "f32", isa, args, step, tile, kv_head, chunk, scratch, gathered, following, partials, stride
            )
        if count < 0:
            join_rows(totals, partials, stride, n_tokens * repeats, args.value_padded)
            continue
        for token in range(n_tokens):
            if rank_at(args, first + token, kv_head, chunk) >= 0:
                row = token * repeats * stride
                join_rows(totals + row, partials + row, stride, repeats, args.value_padded)
    for row in range(n_tokens * repeats):
        head = kv_head * repeats + row % repeats
        out = args.out + (first + row // repeats) * args.out_stride + head * args.value_width * 4
        write_head(kind, args, totals + row * stride, out)


@inline
def attend_listed(kind, isa, args, step, worker, work_split):
    """Small passes, first half: each task is a listed chunk of a tile and kv head; partials are stored by rank."""
    repeats, stride = args.heads // args.kv_heads, (16 + args.value_padded) * 4
    scratch = args.scratch + worker * args.scratch_stride
    partials = scratch + args.tile_rows * (args.key_padded * 4 + 2 * SCORE_BYTES)
    gathered = partials + 2 * args.tile_rows * stride
    n_pairs, n_tasks, passed = step.n_tiles * args.kv_heads, 0, 0
    for pair in range(n_pairs):
        n_tasks += simd.load_int32(list_at(args, pair))
    begin, end = share_start(work_split, worker, n_tasks), share_start(work_split, worker + 1, n_tasks)
    for pair in range(n_pairs):
        count = simd.load_int32(list_at(args, pair))
        own, stop = max(0, begin - passed), min(count, end - passed)
        passed += count
        if own >= stop:
            continue
        tile, kv_head = step.tiles + pair // args.kv_heads * TILE_INTS * 4, pair % args.kv_heads
        load_queries(kind, args, tile, kv_head, scratch)
        for place in range(own, stop):
            chunk, following = listed(args, pair, place), (tile, kv_head, listed(args, pair, min(place + 1, count - 1)))
            if kind is None and parts(tile, chunk):
                attend_fork(kind, "f16", isa, args, step, tile, kv_head, chunk, scratch, gathered, partials, stride)
            else:
                attend_chunk(
                    kind, "f16", isa, args, step, tile, kv_head, chunk, scratch, gathered, following, partials, stride
                )
            for row in range(simd.load_int32(tile + N_TOKENS) * repeats):
                head, token = kv_head * repeats + row % repeats, simd.load_int32(tile + FIRST) + row // repeats
                rank = rank_at(args, token, kv_head, chunk)
                if rank >= 0:
                    kept = args.partials + ((token * args.heads + head) * args.max_chunks + rank) * stride
                    for index in range(0, stride, 64):
                        simd.store(kept + index, simd.load(partials + row * stride + index))


def by_tile(kind: str | None, isa: str) -> Callable[..., None]:
    """The kernel of large passes, for a kind of pages and an instruction set: each task is a tile and a kv head."""

    def attend_chosen_tiles(pointer, worker, work_split):
        args = arguments_at(pointer)
        step = step_at(args.step)
        if step.split == 0:
            scratch = args.scratch + worker * args.scratch_stride
            for task in range(step.n_tiles * args.kv_heads):
                if is_mine(work_split, worker, task):
                    number = step.n_tiles - 1 - task // args.kv_heads
                    tile, pair = step.tiles + number * TILE_INTS * 4, number * args.kv_heads + task % args.kv_heads
                    attend_tile(kind, isa, args, step, tile, pair, scratch, (16 + args.value_padded) * 4)

    return attend_chosen_tiles


def by_chunk(kind: str | None, isa: str) -> Callable[..., None]:
    """The first kernel of small passes; `joining` gives the second."""

    def attend_chosen_chunks(pointer, worker, work_split):
        args = arguments_at(pointer)
        step = step_at(args.step)
        if step.split != 0:
            attend_listed(kind, isa, args, step, worker, work_split)

    return attend_chosen_chunks


def joining(kind: str | None) -> Callable[..., None]:
    """The second kernel of small passes: each task is a token and a head."""

    def join_chosen(pointer, worker, work_split):
        args = arguments_at(pointer)
        step = step_at(args.step)
        if step.split != 0:
            stride, total = (16 + args.value_padded) * 4, args.scratch + worker * args.scratch_stride
            n_tasks = step.n_tokens * args.heads
            for task in range(share_start(work_split, worker, n_tasks), share_start(work_split, worker + 1, n_tasks)):
                token, head = task // args.heads, task % args.heads
                own = simd.load_int32(step.positions + 4 * token) // CHUNK
                count = rank_at(args, token, head // (args.heads // args.kv_heads), own) + 1
                start_head(args, head, total)
                kept = args.partials + task * args.max_chunks * stride
                join_run(total, kept, stride, count, args.value_padded)
                write_head(kind, args, total, args.out + token * args.out_stride + head * args.value_width * 4)

    return join_chosen
