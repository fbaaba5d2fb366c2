"""State spaces of Mamba: steps are made positive, then each tile of 16 columns of a head goes through all tokens.

Memory: mixed float32[n, stride / 4], x of `heads` heads of `width` numbers; keys and queries float32[n, keys_stride / 4
and queries_stride / 4], b and c of `groups` groups of `rows` numbers; steps float32[n, steps_stride / 4], `n_steps`
numbers of a token: one per head, or one per column; then rate is float32[heads * width / 16, rows, 16], and skip has
one number per column. kept holds, for tokens that are not settled, x, b, c and the steps. The rest is as in
`recurrence`. The twin is `graph.ops.state_space`.
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
from edgeinfer.backends.cpu.layout.records import STATE_SPACE
from edgeinfer.jit import simd
from edgeinfer.jit.compiler import inline

arguments_at = simd.record_at(STATE_SPACE)


@inline
def keep_token(args, token, kept):
    """Keep the inputs that states need to advance by a token."""
    inner, pairs = args.heads * args.width, args.groups * args.rows
    copy_numbers(args.mixed + token * args.stride, kept, inner)
    copy_numbers(args.keys + token * args.keys_stride, kept + inner * 4, pairs)
    copy_numbers(args.queries + token * args.queries_stride, kept + (inner + pairs) * 4, pairs)
    copy_scalars(args.steps + token * args.steps_stride, kept + (inner + 2 * pairs) * 4, args.n_steps)


keep_open = keeping(keep_token)


def prepare(pointer, worker, work_split):
    """Make each worker's steps positive in place, and keep the inputs of tokens that are not settled."""
    args = arguments_at(pointer)
    count = simd.load_int64(args.count)
    start, stop = share_start(work_split, worker, count), share_start(work_split, worker + 1, count)
    for token in range(start, stop):
        steps = args.steps + token * args.steps_stride
        for index in range(0, args.n_steps * 4, 64):
            shifted = simd.add(simd.load(steps + index), simd.load(args.shift + index))
            simd.store(steps + index, simd.activated("softplus", shifted))
    keep_open(args, step_at(args.states_step), start, stop)


@inline
def advance_head(tile, own, key, query, steps, head, column, args):
    """Advance a tile by a token whose step and rate are those of the head; returns the output of its columns."""
    zero = simd.splat(np.float32(0.0))
    length = simd.splat(simd.load_float(steps + 4 * head))
    kept = simd.exp(simd.mul(simd.splat(simd.load_float(args.rate + 4 * head)), length))
    change = simd.mul(length, own)
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
def advance_columns(tile, own, key, query, steps, head, column, args):
    """Advance a tile by a token with steps of its own per column, and rates per column and row of the state."""
    zero, rate = simd.splat(np.float32(0.0)), args.rate + column * args.rows * 4
    length = simd.load(steps + column * 4)
    change = simd.mul(length, own)
    first, second = simd.mul(own, simd.load(args.skip + column * 4)), zero
    for index in range(0, args.rows, 2):
        place, at = tile + index * 64, index * 4
        kept = simd.exp(simd.mul(simd.load(rate + index * 64), length))
        state = simd.fma(change, simd.splat(simd.load_float(key + at)), simd.mul(kept, simd.load(place)))
        simd.store(place, state)
        first = simd.fma(state, simd.splat(simd.load_float(query + at)), first)
        kept = simd.exp(simd.mul(simd.load(rate + index * 64 + 64), length))
        state = simd.fma(change, simd.splat(simd.load_float(key + at + 4)), simd.mul(kept, simd.load(place + 64)))
        simd.store(place + 64, state)
        second = simd.fma(state, simd.splat(simd.load_float(query + at + 4)), second)
    return simd.add(first, second)


def _kernels(advance_tile: Code) -> tuple[Code, Code]:
    """The kernels of tiles that advance in that way."""

    @inline
    def by_token(tile, token, head, column, args):
        group = head // (args.heads // args.groups) * args.rows * 4
        own = simd.load(args.mixed + token * args.stride + column * 4)
        key, query = args.keys + token * args.keys_stride, args.queries + token * args.queries_stride
        steps = args.steps + token * args.steps_stride
        return advance_tile(tile, own, key + group, query + group, steps, head, column, args)

    @inline
    def by_kept(tile, kept, head, column, args):
        group, pairs = head // (args.heads // args.groups) * args.rows * 4, args.groups * args.rows * 4
        key = kept + args.heads * args.width * 4
        own, steps = simd.load(kept + column * 4), key + 2 * pairs
        return advance_tile(tile, own, key + group, key + pairs + group, steps, head, column, args)

    return walking(arguments_at, by_token, by_kept)


recurrence, advance = _kernels(advance_head)
recurrence_by_column, advance_by_column = _kernels(advance_columns)
