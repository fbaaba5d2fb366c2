"""Mamba-2's state spaces: steps are made positive, then each tile of 16 columns of a head goes through all tokens.

Memory: mixed float32[n, stride / 4], x of `heads` heads of `width` numbers, then b and c of `groups` groups of `rows`
numbers; steps float32[n, steps_stride / 4] and out float32[n, out_stride / 4]. States float32[slots, heads, width / 16,
rows, 16]: the rows of a tile lie together. kept float32[rows, kept_stride / 4] holds, for tokens that are not settled,
the row of `mixed`, then the steps. Columns are independent, and a tile goes through all tokens in order, so sums never
depend on what else is in the pass; trees are processed as in `kernels.delta`. The twin is `graph.ops.state_space`.
"""

from __future__ import annotations

import numpy as np

from edgeinfer.backends.cpu.kernels.delta import (
    FIRST,
    KEPT,
    LAST,
    ROW_BYTES,
    SAVE_BYTES,
    SAVED_ROW,
    SETTLED,
    SLOT,
    STOP,
    TARGET,
    TILE_BYTES,
    ancestor,
    copy_tile,
    step_at,
)
from edgeinfer.backends.cpu.kernels.work_split import share_start
from edgeinfer.backends.cpu.layout.records import STATE_SPACE
from edgeinfer.jit import simd
from edgeinfer.jit.compiler import inline

arguments_at = simd.record_at(STATE_SPACE)


def prepare(pointer, worker, work_split):
    """Make each worker's steps positive in place, and keep the inputs of tokens that are not settled."""
    args = arguments_at(pointer)
    step = step_at(args.states_step)
    count = simd.load_int64(args.count)
    start, stop = share_start(work_split, worker, count), share_start(work_split, worker + 1, count)
    for token in range(start, stop):
        steps = args.steps + token * args.steps_stride
        for index in range(0, args.heads * 4, 64):
            shifted = simd.add(simd.load(steps + index), simd.load(args.shift + index))
            simd.store(steps + index, simd.activated("softplus", shifted))
    for number in range(step.n_rows):
        row = step.rows + number * ROW_BYTES
        settled, first = simd.load_int32(row + SETTLED), simd.load_int32(row + KEPT)
        for token in range(max(start, settled), min(stop, simd.load_int32(row + STOP))):
            mixed, kept = args.mixed + token * args.stride, args.kept + (first + token - settled) * args.kept_stride
            for index in range(0, args.mixed_width * 4, 64):
                simd.store(kept + index, simd.load(mixed + index))
            for head in range(args.heads):
                own = simd.load_float(args.steps + token * args.steps_stride + 4 * head)
                simd.store_float(kept + (args.mixed_width + head) * 4, own)


@inline
def advance_tile(tile, mixed, steps, head, column, args):
    """Advance a tile by a token; returns the output of its columns. `column`: its first among those of all heads."""
    zero = simd.splat(np.float32(0.0))
    own, length = simd.load(mixed + column * 4), simd.splat(simd.load_float(steps + 4 * head))
    kept = simd.exp(simd.mul(simd.splat(simd.load_float(args.rate + 4 * head)), length))
    change = simd.mul(length, own)
    group = head // (args.heads // args.groups)
    key = mixed + (args.heads * args.width + group * args.rows) * 4
    query = key + args.groups * args.rows * 4
    first, second = simd.mul(own, simd.splat(simd.load_float(args.skip + 4 * head))), zero
    for index in range(0, args.rows, 2):
        place, at = tile + index * 64, index * 4
        state = simd.fma(change, simd.splat(simd.load_float(key + at)), simd.mul(kept, simd.load(place)))
        simd.store(place, state)
        first = simd.fma(state, simd.splat(simd.load_float(query + at)), first)
        state = simd.fma(change, simd.splat(simd.load_float(key + at + 4)), simd.mul(kept, simd.load(place + 64)))
        simd.store(place + 64, state)
        second = simd.fma(state, simd.splat(simd.load_float(query + at + 4)), second)
    return simd.add(first, second)


@inline
def advance_by_token(tile, token, head, column, args):
    """`advance_tile` by a token of the pass."""
    return advance_tile(
        tile, args.mixed + token * args.stride, args.steps + token * args.steps_stride, head, column, args
    )


@inline
def open_tokens(args, step, settled, stop, head, column, base, tile):
    """Process tokens that are not settled, a tree after `base`; `tile` is scratch."""
    at = -1  # the token after which `tile` is the state
    for token in range(settled, stop):
        parent = simd.load_int32(step.parents + 4 * token)
        if at < 0 or parent != at:
            copy_tile(base, tile, args.rows)
            depth, above = 0, parent
            while above >= settled:
                depth, above = depth + 1, simd.load_int32(step.parents + 4 * above)
            for place in range(depth):
                advance_by_token(tile, ancestor(step.parents, token, depth - place), head, column, args)
        given = advance_by_token(tile, token, head, column, args)
        simd.store(args.out + token * args.out_stride + column * 4, given)
        at = token


def recurrence(pointer, worker, work_split):
    """Process all tokens of the pass, by sequences and tiles; save states where the step asks for it."""
    args = arguments_at(pointer)
    step = step_at(args.states_step)
    tile, other = simd.stack_space(TILE_BYTES), simd.stack_space(TILE_BYTES)
    per_head = args.width // 16
    n_tiles = args.heads * per_head
    count = step.n_rows * n_tiles
    for unit in range(share_start(work_split, worker, count), share_start(work_split, worker + 1, count)):
        number, place = unit // n_tiles, unit % n_tiles
        head, column, at = place // per_head, place * 16, place * args.rows * 64
        row = step.rows + number * ROW_BYTES
        settled, stop = simd.load_int32(row + SETTLED), simd.load_int32(row + STOP)
        copy_tile(args.states + simd.load_int32(row + SLOT) * args.state_bytes + at, tile, args.rows)
        for token in range(simd.load_int32(row + FIRST), settled):
            given = advance_by_token(tile, token, head, column, args)
            simd.store(args.out + token * args.out_stride + column * 4, given)
            for which in range(step.n_saves):
                save = step.saves + which * SAVE_BYTES
                if simd.load_int32(save + SAVED_ROW) == number and simd.load_int32(save + LAST) == token:
                    target = args.states + simd.load_int32(save + TARGET) * args.state_bytes + at
                    copy_tile(tile, target, args.rows)
        open_tokens(args, step, settled, stop, head, column, tile, other)


def advance(pointer, worker, work_split):
    """Write to a slot the state of another slot, or its own, after tokens that were kept."""
    args = arguments_at(pointer)
    step = step_at(args.states_step)
    tile = simd.stack_space(TILE_BYTES)
    per_head = args.width // 16
    n_tiles = args.heads * per_head
    for place in range(share_start(work_split, worker, n_tiles), share_start(work_split, worker + 1, n_tiles)):
        at = place * args.rows * 64
        copy_tile(args.states + step.source * args.state_bytes + at, tile, args.rows)
        for node in range(step.n_nodes):
            mixed = args.kept + simd.load_int32(step.nodes + 4 * node) * args.kept_stride
            advance_tile(tile, mixed, mixed + args.mixed_width * 4, place // per_head, place * 16, args)
        copy_tile(tile, args.states + step.target * args.state_bytes + at, args.rows)
