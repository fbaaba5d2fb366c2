"""Attention of whole texts in tile registers (AMX): every token sees all of its text, which is in the pass.

Memory: float16 pages as `layout.pages` lays them out, without a window; queries, keys, values and shares are taken as
sums of two bfloat16 (`kernels.bfloats`). A task is a head and two tiles of tokens, 32 in all: workers take runs of
them, and split keys and values once for all tasks of a head. The softmax is over all positions at once. Scratch of a
worker, as `layout.bfloats.attention_scratch_bytes` counts it: a query, split queries, sums of four tiles and of shares,
keys [groups of 16 positions, blocks of columns], values [groups of 16 columns, blocks of positions], scores
float32[blocks of positions, 2 tiles of tokens, 2 groups, 16, 16], shares [2 tiles of tokens, blocks of positions].
"""

from __future__ import annotations

import numpy as np

from edgeinfer.backends.cpu.kernels.attention.rotary import step_at
from edgeinfer.backends.cpu.kernels.attention.slots import FIRST, N_TOKENS, ROW, direct_page
from edgeinfer.backends.cpu.kernels.attention.softmax import LOWEST
from edgeinfer.backends.cpu.kernels.bfloats import (
    multiply,
    release_tiles,
    shape_tiles,
    split_numbers,
    split_pair,
    split_row,
    store_sums,
    zero_pairs,
    zero_row,
    zero_sums,
)
from edgeinfer.backends.cpu.kernels.work_split import share_start
from edgeinfer.backends.cpu.layout.attention_records import ATTENTION
from edgeinfer.backends.cpu.layout.bfloats import BLOCK_BYTES, COLUMNS, PAIRS, ROWS, STEP_TOKENS, SUMS_BYTES, TILE_BYTES
from edgeinfer.backends.cpu.layout.pages import GROUPS
from edgeinfer.backends.cpu.layout.step_records import TILE_INTS
from edgeinfer.graph.step import PAGE
from edgeinfer.jit import simd
from edgeinfer.jit.compiler import inline

arguments_at = simd.record_at(ATTENTION)


@inline
def split_keys(args, step, tile, kv_head, n_seen, zeros, to):
    """Write the parts of the keys of a head."""
    width, n_blocks = args.key_width, (args.key_width + COLUMNS - 1) // COLUMNS
    for page in range((n_seen + PAGE - 1) // PAGE):
        keys = direct_page(args, step, tile, kv_head, page)[0]
        for group in range(min(GROUPS, (n_seen - page * PAGE + COLUMNS - 1) // COLUMNS * 2)):
            source = keys + group * 2 * ROWS
            for pair in range(width // 2):
                out = to + pair // PAIRS * BLOCK_BYTES + pair % PAIRS * 64
                split_pair("f16", source + 4 * pair * PAGE, 2 * PAGE, out)
            zero_pairs(width // 2, n_blocks * PAIRS, to)
            if width % 2 != 0:
                last, pair = source + 2 * (width - 1) * PAGE, width // 2
                split_pair("f16", last, zeros - last, to + pair // PAIRS * BLOCK_BYTES + pair % PAIRS * 64)
            to += n_blocks * BLOCK_BYTES


@inline
def split_values(args, step, tile, kv_head, n_seen, zeros, to):
    """Write the parts of the values of a head; zeros for positions that are not there."""
    n_blocks, row_bytes = (n_seen + COLUMNS - 1) // COLUMNS, args.value_padded * 2
    for page in range((n_seen + PAGE - 1) // PAGE):
        values = direct_page(args, step, tile, kv_head, page)[1]
        n_here = min(PAGE, n_seen - page * PAGE)
        for group in range(args.value_padded // ROWS):
            out, source = to + group * n_blocks * BLOCK_BYTES, values + group * 2 * ROWS
            for place in range(0, n_here, 2):
                pair, at, stride = (page * PAGE + place) // 2, source + place * row_bytes, row_bytes
                if place + 1 == n_here:
                    stride = zeros - at
                split_pair("f16", at, stride, out + pair // PAIRS * BLOCK_BYTES + pair % PAIRS * 64)
    for group in range(args.value_padded // ROWS):
        zero_pairs((n_seen + 1) // 2, n_blocks * PAIRS, to + group * n_blocks * BLOCK_BYTES)


@inline
def split_queries(args, first, stop, head, query, to):
    """Write the parts of the scaled queries of tokens `first` to `stop` - 1; zeros fill up the tiles.

    `query`: room for one, whose padding is zero.
    """
    n_blocks, scale = (args.key_width + COLUMNS - 1) // COLUMNS, simd.splat(args.scale)
    for place in range(STEP_TOKENS):
        row = to + place // ROWS * n_blocks * BLOCK_BYTES + place % ROWS * 64
        if first + place < stop:
            source = args.query + (first + place) * args.query_stride + head * args.key_padded * 4
            for index in range(0, args.key_padded * 4, 64):
                simd.store(query + index, simd.mul(simd.load(source + index), scale))
            split_row(query, n_blocks, row)
        else:
            zero_row(n_blocks, row)


@inline
def score(args, n_blocks, queries, keys, scores):
    """Write the scores of 32 tokens for all positions."""
    beside = (args.key_width + COLUMNS - 1) // COLUMNS * BLOCK_BYTES
    for _ in range(n_blocks):
        zero_sums()
        for block in range(0, beside, BLOCK_BYTES):
            multiply("f16", queries + block, beside, keys + block, beside)
        store_sums(scores)
        keys, scores = keys + 2 * beside, scores + SUMS_BYTES


@inline
def share_out(scores, n_blocks, n_seen, shares):
    """Write the parts of e^(score - largest) of a row; returns their sum."""
    last, n_last = scores + (n_blocks - 1) * SUMS_BYTES, n_seen - (n_blocks - 1) * COLUMNS
    lowest = np.float32(LOWEST)
    if n_last < COLUMNS:
        simd.store(last, simd.keep_lanes(simd.load(last), 0, n_last, lowest))
        other = simd.load(last + TILE_BYTES)
        simd.store(last + TILE_BYTES, simd.keep_lanes(other, 0, n_last - ROWS, lowest))
    top = other_top = simd.splat(lowest)
    for at in range(scores, last + SUMS_BYTES, SUMS_BYTES):
        top = simd.maximum(top, simd.load(at))
        other_top = simd.maximum(other_top, simd.load(at + TILE_BYTES))
    largest = simd.splat(simd.max_lanes(simd.maximum(top, other_top)))
    total = other_total = simd.splat(np.float32(0.0))
    for at in range(scores, last + SUMS_BYTES, SUMS_BYTES):
        share = simd.exp(simd.sub(simd.load(at), largest))
        other = simd.exp(simd.sub(simd.load(at + TILE_BYTES), largest))
        split_numbers(share, other, shares)
        total, other_total = simd.add(total, share), simd.add(other_total, other)
        shares += BLOCK_BYTES
    return simd.sum_lanes(simd.add(total, other_total))


@inline
def blend(args, first, stop, head, n_blocks, shares, values, totals, sums):
    """Write the results of tokens `first` to `stop` - 1: values times shares over the sums of shares, `totals`."""
    apart, n_groups = n_blocks * BLOCK_BYTES, args.value_padded // ROWS
    for group in range(0, n_groups, 2):
        beside = np.int64(0)  # the last of an odd number is blended twice
        if group + 1 < n_groups:
            beside = apart
        zero_sums()
        for block in range(0, apart, BLOCK_BYTES):
            multiply("f16", shares + block, apart, values + group * apart + block, beside)
        store_sums(sums)
        for token in range(first, stop):
            place = token - first
            source = sums + place // ROWS * BLOCK_BYTES + place % ROWS * 64
            inverse = simd.splat(np.float32(1.0) / simd.load_float(totals + 4 * place))
            for column in range(group * ROWS, min(args.value_width, group * ROWS + COLUMNS), ROWS):
                result = simd.mul(simd.load(source), inverse)
                out = args.out + token * args.out_stride + (head * args.value_width + column) * 4
                if column + ROWS <= args.value_width:
                    simd.store(out, result)
                else:
                    simd.store(source, result)
                    for index in range(0, (args.value_width - column) * 4, 4):
                        simd.store_float(out + index, simd.load_float(source + index))
                source += TILE_BYTES


@inline
def attend_text(args, step, tile, first, count, scratch, worker, work_split):
    """A worker's share of the tasks of one text: `count` tokens from `first` on, which see `count` positions."""
    n_seen = simd.load_int32(step.ends + 4 * first) + 1
    n_blocks, key_blocks = (n_seen + COLUMNS - 1) // COLUMNS, (args.key_width + COLUMNS - 1) // COLUMNS
    queries = scratch + key_blocks * COLUMNS * 4
    sums = queries + 2 * key_blocks * BLOCK_BYTES
    totals = sums + SUMS_BYTES
    keys = totals + 4 * STEP_TOKENS
    values = keys + 2 * n_blocks * key_blocks * BLOCK_BYTES
    scores = values + args.value_padded // ROWS * n_blocks * BLOCK_BYTES
    shares, zeros = scores + n_blocks * SUMS_BYTES, scratch  # a query's room, before there is one
    n_parts, ready = (count + STEP_TOKENS - 1) // STEP_TOKENS, np.int64(-1)
    n_tasks = args.heads * n_parts
    for task in range(share_start(work_split, worker, n_tasks), share_start(work_split, worker + 1, n_tasks)):
        head = task // n_parts
        kv_head = head * args.kv_heads // args.heads
        if kv_head != ready:
            for at in range(scratch, queries, 64):
                simd.store(at, simd.splat(np.float32(0.0)))
            split_keys(args, step, tile, kv_head, n_seen, zeros, keys)
            split_values(args, step, tile, kv_head, n_seen, zeros, values)
            ready = kv_head
        start = first + task % n_parts * STEP_TOKENS
        stop = min(first + count, start + STEP_TOKENS)
        split_queries(args, start, stop, head, scratch, queries)
        score(args, n_blocks, queries, keys, scores)
        for place in range(STEP_TOKENS):
            source = scores + place // ROWS * BLOCK_BYTES + place % ROWS * 64
            to = shares + place // ROWS * n_blocks * BLOCK_BYTES + place % ROWS * 64
            simd.store_float(totals + 4 * place, share_out(source, n_blocks, n_seen, to))
        blend(args, start, stop, head, n_blocks, shares, values, totals, sums)


def attend_whole(pointer, worker, work_split):
    """Attend text by text: runs of attention tiles of the same row of the page tables."""
    args = arguments_at(pointer)
    step = step_at(args.step)
    shape_tiles()
    place, first = 0, 0
    while place < step.n_tiles:
        tile = step.tiles + place * TILE_INTS * 4
        row, first, count = simd.load_int32(tile + ROW), simd.load_int32(tile + FIRST), 0
        while place < step.n_tiles:
            other = step.tiles + place * TILE_INTS * 4
            if simd.load_int32(other + ROW) != row:
                break
            count += simd.load_int32(other + N_TOKENS)
            place += 1
        attend_text(args, step, tile, first, count, args.scratch + worker * args.scratch_stride, worker, work_split)
    release_tiles()
