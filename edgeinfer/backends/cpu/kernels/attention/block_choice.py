"""Which chunks each block of a prompt attends to, per KV head, before large passes attend by tiles.

`graph.block_choice` has the meaning: a few queries of the block attend to all positions before it, and the chunks that
get most of their attention are taken, besides the first one and the one before the block. Memory: `block_lists`
int32[blocks, G, block_list_bytes / 4], for each block and KV head the number of chunks, then the chunks in order.
`block_attention` of a worker, float32[1 + 2 * rows, block_attention_row / 4]: what each chunk gets, then, of each
sampled row, the largest score in each chunk and the sum of shares. Queries and scores lie in the worker's scratch, as
`attention` has them.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from edgeinfer.backends.cpu.kernels.attention.attention import arguments_at, bend_row, load_queries, score_page
from edgeinfer.backends.cpu.kernels.attention.rotary import step_at
from edgeinfer.backends.cpu.kernels.attention.slots import FIRST, N_TOKENS, ROW, direct_page
from edgeinfer.backends.cpu.kernels.attention.softmax import LOWEST, is_bent, softmax_rows
from edgeinfer.backends.cpu.kernels.work_split import is_mine
from edgeinfer.backends.cpu.layout.padding import CHUNK, LANES, SCORE_BYTES
from edgeinfer.backends.cpu.layout.step_records import TILE_INTS
from edgeinfer.graph.block_choice import ALWAYS, SAMPLED, SAMPLED_APART
from edgeinfer.graph.step import PAGE
from edgeinfer.jit import simd
from edgeinfer.jit.compiler import inline

CHUNK_VECTORS = CHUNK // LANES
TILE_BYTES = 4 * TILE_INTS
PAIRS_BYTES = 4 * 64
TAKEN = np.float32(-1.0)
"""What a chunk gets in place of its attention once it is chosen."""


@inline
def point_at(tile, block, sample):
    """Make a tile of the token of a block's sample; `block`: address of its first token and its row."""
    simd.store_int32(tile + FIRST, simd.load_int32(block) + (sample + 1) * SAMPLED_APART - 1)
    simd.store_int32(tile + N_TOKENS, 1)
    simd.store_int32(tile + ROW, simd.load_int32(block + 4))


@inline
def attend_before(kind, isa, args, step, block, kv_head, n_before, worker):
    """Largest scores and sums of shares of the sampled rows in each chunk before a block."""
    repeats, size = args.heads // args.kv_heads, args.block_attention_row
    rows, tile, pairs = SAMPLED * repeats, simd.stack_space(TILE_BYTES), simd.stack_space(PAIRS_BYTES)
    scratch = args.scratch + worker * args.scratch_stride
    shares = scratch + args.tile_rows * args.key_padded * 4
    kept = args.block_attention + worker * args.block_attention_stride
    for sample in range(SAMPLED):
        point_at(tile, block, sample)
        load_queries(kind, args, tile, kv_head, scratch + sample * repeats * args.key_padded * 4)
    for chunk in range(n_before):
        keys = direct_page(args, step, tile, kv_head, chunk)[0]
        following = direct_page(args, step, tile, kv_head, min(chunk + 1, n_before - 1))[0]
        score_page(kind, "f16", isa, args, scratch, rows, keys, (following - keys) * args.ahead, scratch, shares)
        if is_bent(args):
            for sample in range(SAMPLED):
                point_at(tile, block, sample)
                for row in range(repeats):
                    at = shares + (sample * repeats + row) * SCORE_BYTES
                    bend_row(args, step, tile, kv_head, row, chunk * CHUNK, at, CHUNK_VECTORS)
        for row in range(0, rows, 4):
            count = min(4, rows - row)
            softmax_rows(shares + row * SCORE_BYTES, count, 0, CHUNK, CHUNK_VECTORS, pairs, 64)
            for place in range(count):
                to = kept + (1 + 2 * (row + place)) * size + 4 * chunk
                simd.store_float(to, simd.load_float(pairs + 64 * place))
                simd.store_float(to + size, simd.load_float(pairs + 64 * place + 4))


@inline
def add_attention(kept, size, rows, n_chunks):
    """What each chunk gets of the rows' attention, summed; every row gives 1 in all."""
    for at in range(0, 4 * n_chunks, 64):
        simd.store(kept + at, simd.splat(np.float32(0.0)))
    for row in range(rows):
        largest = kept + (1 + 2 * row) * size
        shares, top, total = largest + size, simd.splat(np.float32(LOWEST)), simd.splat(np.float32(0.0))
        for at in range(0, 4 * n_chunks, 64):
            within = n_chunks - at // 4
            top = simd.maximum(top, simd.keep_lanes(simd.load(largest + at), 0, within, np.float32(LOWEST)))
        most = simd.splat(simd.max_lanes(top))
        for at in range(0, 4 * n_chunks, 64):
            share = simd.mul(simd.load(shares + at), simd.exp(simd.sub(simd.load(largest + at), most)))
            share = simd.keep_lanes(share, 0, n_chunks - at // 4, np.float32(0.0))
            simd.store(shares + at, share)
            total = simd.add(total, share)
        part = simd.splat(np.float32(1.0) / simd.sum_lanes(total))
        for at in range(0, 4 * n_chunks, 64):
            simd.store(kept + at, simd.fma(simd.load(shares + at), part, simd.load(kept + at)))


@inline
def take_most(kept, stop, n_more):
    """Mark the `n_more` chunks with most attention from the second one to before `stop`; of two alike the later."""
    for _more in range(n_more):
        best, place = np.float32(-0.5), np.int64(0)
        for chunk in range(1, stop):
            value = simd.load_float(kept + 4 * chunk)
            if value >= best:
                best, place = value, chunk
        simd.store_float(kept + 4 * place, TAKEN)


@inline
def choose(kind, isa, args, step, block, kv_head, worker, out):
    """Write the chunks that a block attends to."""
    n_chunks = simd.load_int32(step.positions + 4 * simd.load_int32(block)) // PAGE + 1
    kept, count = args.block_attention + worker * args.block_attention_stride, np.int64(0)
    first_near = np.int64(0)
    if n_chunks > args.block_chunks:
        first_near = n_chunks - 2
        attend_before(kind, isa, args, step, block, kv_head, n_chunks - 1, worker)
        add_attention(kept, args.block_attention_row, SAMPLED * (args.heads // args.kv_heads), n_chunks - 1)
        take_most(kept, first_near, args.block_chunks - ALWAYS)
        simd.store_float(kept, TAKEN)
    for chunk in range(n_chunks):
        if chunk >= first_near or simd.load_float(kept + 4 * chunk) == TAKEN:
            count += 1
            simd.store_int32(out + 4 * count, chunk)
    simd.store_int32(out, count)
    simd.store_int32(out + 4 + 4 * count, n_chunks - 1)  # read where the chunk after the last one would be


def choosing(kind: str | None, isa: str) -> Callable[..., None]:
    """The kernel, for a kind of pages and an instruction set."""

    def choose_for_blocks(pointer, worker, work_split):
        args = arguments_at(pointer)
        step = step_at(args.step)
        for task in range(step.n_blocks * args.kv_heads):
            if is_mine(work_split, worker, task):
                block, kv_head = step.blocks + 8 * (task // args.kv_heads), task % args.kv_heads
                choose(kind, isa, args, step, block, kv_head, worker, args.block_lists + task * args.block_list_bytes)

    return choose_for_blocks
