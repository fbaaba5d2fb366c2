"""The gated delta rule: queries and keys become unit vectors, then each tile of 16 columns goes through all tokens.

Memory: mixed float32[n, stride / 4], queries and keys of `key_heads` heads, then values of `heads`, all of `width`
numbers; decay float32[n, decay_stride / 4], `n_decays` numbers of a token: one per value head, or one per key column of
each; strength float32[n, strength_stride / 4], one per value head. kept holds, for tokens that are not settled, the row
of `mixed`, the decays, the strengths. The rest is as in `recurrence`. The twin is `graph.ops.gated_delta_net`.
"""

from __future__ import annotations

import numpy as np

from edgeinfer.backends.cpu.kernels.recurrence import (
    Code,
    copy_numbers,
    copy_scalars,
    keeping,
    step_at,
    walking,
)
from edgeinfer.backends.cpu.kernels.work_split import share_start
from edgeinfer.backends.cpu.layout.records import DELTA
from edgeinfer.jit import simd
from edgeinfer.jit.compiler import inline

arguments_at = simd.record_at(DELTA)
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
    """Keep the inputs that states need to advance by a token."""
    decays = kept + args.mixed_width * 4
    copy_numbers(args.mixed + token * args.stride, kept, args.mixed_width)
    copy_scalars(args.decay + token * args.decay_stride, decays, args.n_decays)
    copy_scalars(args.strength + token * args.strength_stride, decays + args.n_decays * 4, args.heads)


keep_open = keeping(keep_token)


def prepare(pointer, worker, work_split):
    """Prepare each worker's tokens in place: unit queries and keys, decay and learning strength."""
    args = arguments_at(pointer)
    count = simd.load_int64(args.count)
    start, stop = share_start(work_split, worker, count), share_start(work_split, worker + 1, count)
    one, zero = simd.splat(np.float32(1.0)), simd.splat(np.float32(0.0))
    for token in range(start, stop):
        mixed = args.mixed + token * args.stride
        for head in range(args.key_heads):
            key = mixed + (args.key_heads + head) * args.width * 4
            make_unit(mixed + head * args.width * 4, args.width, args.scale)
            make_unit(key, args.width, np.float32(1.0))
        decay, strength = args.decay + token * args.decay_stride, args.strength + token * args.strength_stride
        for index in range(0, args.n_decays * 4, 64):
            soft = simd.activated("softplus", simd.add(simd.load(decay + index), simd.load(args.shift + index)))
            simd.store(decay + index, simd.exp(simd.mul(simd.load(args.rate + index), soft)))
        for index in range(0, args.heads * 4, 64):
            turned = simd.exp(simd.sub(zero, simd.load(strength + index)))
            simd.store(strength + index, simd.div(one, simd.add(one, turned)))
    keep_open(args, step_at(args.states_step), start, stop)


@inline
def advance_head(tile, query, key, value, decay, strength, head, args):
    """Advance a tile by a token whose decay is that of the head; returns the output of its columns."""
    width, zero = args.width, simd.splat(np.float32(0.0))
    first, second, third, fourth = zero, zero, zero, zero
    for index in range(0, width, 4):
        rows, numbers = tile + index * 64, key + index * 4
        first = simd.fma(simd.load(rows), simd.splat(simd.load_float(numbers)), first)
        second = simd.fma(simd.load(rows + 64), simd.splat(simd.load_float(numbers + 4)), second)
        third = simd.fma(simd.load(rows + 128), simd.splat(simd.load_float(numbers + 8)), third)
        fourth = simd.fma(simd.load(rows + 192), simd.splat(simd.load_float(numbers + 12)), fourth)
    known = simd.add(simd.add(first, second), simd.add(third, fourth))
    kept = simd.splat(simd.load_float(decay + 4 * head))
    learned = simd.splat(simd.load_float(strength + 4 * head))
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
def advance_columns(tile, query, key, value, decay, strength, head, args):
    """Advance a tile by a token with a decay per key column, which is a row of the tile."""
    width, zero, decays = args.width, simd.splat(np.float32(0.0)), decay + 4 * head * args.width
    first, second = zero, zero
    for index in range(0, width, 2):
        rows, at = tile + index * 64, index * 4
        state = simd.mul(simd.load(rows), simd.splat(simd.load_float(decays + at)))
        simd.store(rows, state)
        first = simd.fma(state, simd.splat(simd.load_float(key + at)), first)
        state = simd.mul(simd.load(rows + 64), simd.splat(simd.load_float(decays + at + 4)))
        simd.store(rows + 64, state)
        second = simd.fma(state, simd.splat(simd.load_float(key + at + 4)), second)
    learned = simd.splat(simd.load_float(strength + 4 * head))
    change = simd.mul(learned, simd.sub(value, simd.add(first, second)))
    first, second = zero, zero
    for index in range(0, width, 2):
        rows, at = tile + index * 64, index * 4
        state = simd.fma(change, simd.splat(simd.load_float(key + at)), simd.load(rows))
        simd.store(rows, state)
        first = simd.fma(state, simd.splat(simd.load_float(query + at)), first)
        state = simd.fma(change, simd.splat(simd.load_float(key + at + 4)), simd.load(rows + 64))
        simd.store(rows + 64, state)
        second = simd.fma(state, simd.splat(simd.load_float(query + at + 4)), second)
    return simd.add(first, second)


@inline
def key_head_of(args, head):
    """The key head of a value head."""
    if args.grouped != 0:
        return head // (args.heads // args.key_heads)
    return head % args.key_heads


def _kernels(advance_tile: Code) -> tuple[Code, Code]:
    """The kernels of tiles that advance in that way."""

    @inline
    def by_row(tile, mixed, decay, strength, head, column, args):
        query = mixed + key_head_of(args, head) * args.width * 4
        value = simd.load(mixed + (2 * args.key_heads * args.width + column) * 4)
        return advance_tile(tile, query, query + args.key_heads * args.width * 4, value, decay, strength, head, args)

    @inline
    def by_token(tile, token, head, column, args):
        decay, strength = args.decay + token * args.decay_stride, args.strength + token * args.strength_stride
        return by_row(tile, args.mixed + token * args.stride, decay, strength, head, column, args)

    @inline
    def by_kept(tile, kept, head, column, args):
        decay = kept + args.mixed_width * 4
        return by_row(tile, kept, decay, decay + args.n_decays * 4, head, column, args)

    return walking(arguments_at, by_token, by_kept)


recurrence, advance = _kernels(advance_head)
recurrence_by_column, advance_by_column = _kernels(advance_columns)
