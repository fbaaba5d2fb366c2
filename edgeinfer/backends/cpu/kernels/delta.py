"""The gated delta rule: queries and keys become unit vectors, then each tile of 16 columns goes through all tokens.

Memory: mixed float32[n, stride / 4], queries and keys of `key_heads` heads, then values of `value_heads`, all of
`width` numbers; decay and strength float32[n, decay_stride / 4], one number per value head; out
float32[n, out_stride / 4]. States float32[slots, value_heads, width / 16, width, 16]: the rows of a tile lie together.
kept float32[rows, kept_stride / 4] holds, for tokens that are not settled, the row of `mixed`, the decays, the
strengths. The columns of a state are independent: a tile stays in the first cache while it processes all tokens in
order, so sums never depend on what else is in the pass. In a tree, a node that does not follow the one before it starts
from the tile after the settled tokens and replays its path. The twin is `graph.ops.gated_delta_net`.
"""

from __future__ import annotations

import numpy as np

from edgeinfer.backends.cpu.kernels.work_split import share_start
from edgeinfer.backends.cpu.layout.records import DELTA, MOST_DELTA_WIDTH
from edgeinfer.backends.cpu.layout.step_records import ROW, ROW_INTS, SAVE, SAVE_INTS, STATE_STEP
from edgeinfer.jit import simd
from edgeinfer.jit.compiler import inline

arguments_at, step_at = simd.record_at(DELTA), simd.record_at(STATE_STEP)
FIRST, STOP, SLOT, SETTLED, KEPT = (ROW[name] for name in ("first", "stop", "slot", "settled", "kept"))
ROW_BYTES, SAVE_BYTES = 4 * ROW_INTS, 4 * SAVE_INTS
SAVED_ROW, LAST, TARGET = (SAVE[name] for name in ("row", "last", "slot"))
TILE_BYTES = 64 * MOST_DELTA_WIDTH
EPSILON = np.float32(1e-6)


@inline
def make_unit(head, width, scale):
    """Divide a head by its length, and multiply it by `scale`."""
    squares = simd.splat(np.float32(0.0))
    for index in range(0, width * 4, 64):
        value = simd.load(head + index)
        squares = simd.fma(value, value, squares)
    factor = simd.splat(scale / simd.sqrt(simd.sum_lanes(squares) + EPSILON))
    for index in range(0, width * 4, 64):
        simd.store(head + index, simd.mul(simd.load(head + index), factor))


@inline
def keep_token(args, token, kept):
    """Keep the inputs that states need to advance by a token that is not settled."""
    mixed, n_bytes = args.mixed + token * args.stride, args.mixed_width * 4
    for index in range(0, n_bytes, 64):
        simd.store(kept + index, simd.load(mixed + index))
    for head in range(args.value_heads):
        decay = simd.load_float(args.decay + token * args.decay_stride + 4 * head)
        strength = simd.load_float(args.strength + token * args.decay_stride + 4 * head)
        simd.store_float(kept + n_bytes + 4 * head, decay)
        simd.store_float(kept + n_bytes + 4 * (args.value_heads + head), strength)


def prepare(pointer, worker, work_split):
    """Prepare each worker's tokens in place: unit queries and keys, decay and learning strength."""
    args = arguments_at(pointer)
    step = step_at(args.states_step)
    count = simd.load_int64(args.count)
    start, stop = share_start(work_split, worker, count), share_start(work_split, worker + 1, count)
    one, zero = simd.splat(np.float32(1.0)), simd.splat(np.float32(0.0))
    for token in range(start, stop):
        mixed = args.mixed + token * args.stride
        for head in range(args.key_heads):
            make_unit(mixed + head * args.width * 4, args.width, args.scale)
            make_unit(mixed + (args.key_heads + head) * args.width * 4, args.width, np.float32(1.0))
        decay, strength = args.decay + token * args.decay_stride, args.strength + token * args.decay_stride
        for index in range(0, args.value_heads * 4, 64):
            soft = simd.activated("softplus", simd.add(simd.load(decay + index), simd.load(args.shift + index)))
            simd.store(decay + index, simd.exp(simd.mul(simd.load(args.rate + index), soft)))
            turned = simd.exp(simd.sub(zero, simd.load(strength + index)))
            simd.store(strength + index, simd.div(one, simd.add(one, turned)))
    for number in range(step.n_rows):
        row = step.rows + number * ROW_BYTES
        settled, kept = simd.load_int32(row + SETTLED), simd.load_int32(row + KEPT)
        for token in range(max(start, settled), min(stop, simd.load_int32(row + STOP))):
            keep_token(args, token, args.kept + (kept + token - settled) * args.kept_stride)


@inline
def copy_tile(source, target, width):
    """Copy a tile of `width` rows."""
    for index in range(0, width * 64, 64):
        simd.store(target + index, simd.load(source + index))


@inline
def advance_tile(tile, mixed, decay, strength, key_head, column, args):
    """Advance a tile by a token; returns the output of its columns. `column`: its first among all value columns."""
    width, zero = args.width, simd.splat(np.float32(0.0))
    query = mixed + key_head * width * 4
    key = query + args.key_heads * width * 4
    first, second, third, fourth = zero, zero, zero, zero
    for index in range(0, width, 4):
        rows, numbers = tile + index * 64, key + index * 4
        first = simd.fma(simd.load(rows), simd.splat(simd.load_float(numbers)), first)
        second = simd.fma(simd.load(rows + 64), simd.splat(simd.load_float(numbers + 4)), second)
        third = simd.fma(simd.load(rows + 128), simd.splat(simd.load_float(numbers + 8)), third)
        fourth = simd.fma(simd.load(rows + 192), simd.splat(simd.load_float(numbers + 12)), fourth)
    known = simd.add(simd.add(first, second), simd.add(third, fourth))
    value = simd.load(mixed + (2 * args.key_heads * width + column) * 4)
    kept, learned = simd.splat(simd.load_float(decay)), simd.splat(simd.load_float(strength))
    change = simd.mul(learned, simd.sub(value, simd.mul(kept, known)))
    first, second = zero, zero
    for index in range(0, width, 2):
        rows, at = tile + index * 64, index * 4
        state = simd.fma(change, simd.splat(simd.load_float(key + at)), simd.mul(kept, simd.load(rows)))
        simd.store(rows, state)
        first = simd.fma(state, simd.splat(simd.load_float(query + at)), first)
        state = simd.fma(change, simd.splat(simd.load_float(key + at + 4)), simd.mul(kept, simd.load(rows + 64)))
        simd.store(rows + 64, state)
        second = simd.fma(state, simd.splat(simd.load_float(query + at + 4)), second)
    return simd.add(first, second)


@inline
def advance_by_token(tile, token, head, key_head, column, args):
    """`advance_tile` by a token of the pass."""
    mixed, at = args.mixed + token * args.stride, token * args.decay_stride + 4 * head
    return advance_tile(tile, mixed, args.decay + at, args.strength + at, key_head, column, args)


@inline
def ancestor(parents, token, n_before):
    """The token that many tokens before another one in the pass."""
    for _ in range(n_before):
        token = simd.load_int32(parents + 4 * token)
    return token


@inline
def key_head_of(args, head):
    """The key head of a value head."""
    if args.grouped != 0:
        return head // (args.value_heads // args.key_heads)
    return head % args.key_heads


@inline
def open_tokens(args, step, settled, stop, head, key_head, column, base, tile):
    """Process tokens that are not settled, a tree after `base`; `tile` is scratch."""
    at = -1  # the token after which `tile` is the state
    for token in range(settled, stop):
        parent = simd.load_int32(step.parents + 4 * token)
        if at < 0 or parent != at:
            copy_tile(base, tile, args.width)
            depth, above = 0, parent
            while above >= settled:
                depth, above = depth + 1, simd.load_int32(step.parents + 4 * above)
            for place in range(depth):
                advance_by_token(tile, ancestor(step.parents, token, depth - place), head, key_head, column, args)
        given = advance_by_token(tile, token, head, key_head, column, args)
        simd.store(args.out + token * args.out_stride + column * 4, given)
        at = token


def recurrence(pointer, worker, work_split):
    """Process all tokens of the pass, by sequences and tiles; save states where the step asks for it."""
    args = arguments_at(pointer)
    step = step_at(args.states_step)
    tile, other = simd.stack_space(TILE_BYTES), simd.stack_space(TILE_BYTES)
    per_head = args.width // 16
    n_tiles = args.value_heads * per_head
    count = step.n_rows * n_tiles
    for unit in range(share_start(work_split, worker, count), share_start(work_split, worker + 1, count)):
        number, place = unit // n_tiles, unit % n_tiles
        head, column = place // per_head, place * 16
        key_head, at = key_head_of(args, head), place * args.width * 64
        row = step.rows + number * ROW_BYTES
        settled, stop = simd.load_int32(row + SETTLED), simd.load_int32(row + STOP)
        copy_tile(args.states + simd.load_int32(row + SLOT) * args.state_bytes + at, tile, args.width)
        for token in range(simd.load_int32(row + FIRST), settled):
            given = advance_by_token(tile, token, head, key_head, column, args)
            simd.store(args.out + token * args.out_stride + column * 4, given)
            for which in range(step.n_saves):
                save = step.saves + which * SAVE_BYTES
                if simd.load_int32(save + SAVED_ROW) == number and simd.load_int32(save + LAST) == token:
                    target = args.states + simd.load_int32(save + TARGET) * args.state_bytes + at
                    copy_tile(tile, target, args.width)
        open_tokens(args, step, settled, stop, head, key_head, column, tile, other)


def advance(pointer, worker, work_split):
    """Write to a slot the state of another slot, or its own, after tokens that were kept."""
    args = arguments_at(pointer)
    step = step_at(args.states_step)
    tile = simd.stack_space(TILE_BYTES)
    per_head = args.width // 16
    n_tiles = args.value_heads * per_head
    for place in range(share_start(work_split, worker, n_tiles), share_start(work_split, worker + 1, n_tiles)):
        head, at = place // per_head, place * args.width * 64
        copy_tile(args.states + step.source * args.state_bytes + at, tile, args.width)
        for node in range(step.n_nodes):
            mixed = args.kept + simd.load_int32(step.nodes + 4 * node) * args.kept_stride
            decay = mixed + (args.mixed_width + head) * 4
            strength = decay + args.value_heads * 4
            advance_tile(tile, mixed, decay, strength, key_head_of(args, head), place * 16, args)
        copy_tile(tile, args.states + step.target * args.state_bytes + at, args.width)
