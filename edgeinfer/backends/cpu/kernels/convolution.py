"""Causal convolutions by column, with optional gates before and after, and the states that they keep of a sequence.

Memory: source, before, after and out float32[n, stride / 4]; weight float32[taps, row_bytes / 4]; states
float32[slots, taps - 1, row_bytes / 4], the oldest token first; kept float32[rows, row_bytes / 4], of tokens that are
not settled. `STATE_STEP` says where the states of sequences are. Workers share columns, as in products of that width.
The sum of a column is one chain from the oldest token to the newest. The twin is `graph.ops.causal_conv`.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from edgeinfer.backends.cpu.kernels.work_split import share_start
from edgeinfer.backends.cpu.layout.records import CONVOLUTION
from edgeinfer.backends.cpu.layout.step_records import ROW, ROW_INTS, SAVE, SAVE_INTS, STATE_STEP
from edgeinfer.jit import simd
from edgeinfer.jit.compiler import inline

arguments_at, step_at = simd.record_at(CONVOLUTION), simd.record_at(STATE_STEP)
FIRST, STOP, SLOT, SETTLED, KEPT = (ROW[name] for name in ("first", "stop", "slot", "settled", "kept"))
ROW_BYTES, SAVE_BYTES = 4 * ROW_INTS, 4 * SAVE_INTS
SAVED_ROW, LAST, TARGET = (SAVE[name] for name in ("row", "last", "slot"))


@inline
def row_before(args, parents, history, token, n_before):
    """Address of x of a token's ancestor, that many tokens back: in the pass, or in the sequence's state."""
    missing = 0
    for _ in range(n_before):
        if token >= 0:
            token = simd.load_int32(parents + 4 * token)
        if token < 0:
            missing += 1
    if token >= 0:
        return args.source + token * args.stride
    return history + (args.taps - 1 - missing) * args.row_bytes


@inline
def copy_row(source, target, start, stop):
    """Copy vectors `start` to `stop` of a row."""
    for index in range(start, stop):
        simd.store(target + index * 64, simd.load(source + index * 64))


def causal_conv(activation: str | None) -> Callable[..., None]:
    """The kernel, with an activation or None."""

    def causal_conv(pointer, worker, work_split):
        """Convolve all tokens of the pass; then save states and keep the x of tokens that are not settled."""
        args = arguments_at(pointer)
        step = step_at(args.states_step)
        pairs = args.n_vectors // 2
        start, stop = 2 * share_start(work_split, worker, pairs), 2 * share_start(work_split, worker + 1, pairs)
        for number in range(step.n_rows):
            row = step.rows + number * ROW_BYTES
            first, last = simd.load_int32(row + FIRST), simd.load_int32(row + STOP)
            settled, kept = simd.load_int32(row + SETTLED), simd.load_int32(row + KEPT)
            history = args.states + simd.load_int32(row + SLOT) * args.state_bytes
            for token in range(first, last):
                source, out = args.source + token * args.stride, args.out + token * args.stride
                if args.before != 0:
                    before = args.before + token * args.stride
                    for index in range(start, stop):
                        value = simd.mul(simd.load(before + index * 64), simd.load(source + index * 64))
                        simd.store(source + index * 64, value)
                # the oldest of four; kernels of fewer taps have zero weights there, and read the token itself
                third, second, newest = source, source, source
                if args.taps > 3:
                    third = row_before(args, step.parents, history, token, 3)
                if args.taps > 2:
                    second = row_before(args, step.parents, history, token, 2)
                if args.taps > 1:
                    newest = row_before(args, step.parents, history, token, 1)
                for index in range(start, stop):
                    weight, at = args.weight + index * 64, index * 64
                    own = simd.load(source + at)
                    total = simd.splat(np.float32(0.0))
                    if args.taps > 3:
                        total = simd.mul(simd.load(third + at), simd.load(weight))
                    if args.taps > 2:
                        total = simd.fma(simd.load(second + at), simd.load(weight + args.row_bytes), total)
                    if args.taps > 1:
                        total = simd.fma(simd.load(newest + at), simd.load(weight + 2 * args.row_bytes), total)
                    total = simd.fma(own, simd.load(weight + 3 * args.row_bytes), total)
                    if activation is not None:
                        total = simd.activated(activation, total)
                    if args.after != 0:
                        total = simd.mul(simd.load(args.after + token * args.stride + at), total)
                    simd.store(out + at, total)
                if token >= settled:
                    copy_row(source, args.kept + (kept + token - settled) * args.row_bytes, start, stop)
        for number in range(step.n_saves):
            save = step.saves + number * SAVE_BYTES
            row = step.rows + simd.load_int32(save + SAVED_ROW) * ROW_BYTES
            history = args.states + simd.load_int32(row + SLOT) * args.state_bytes
            target = args.states + simd.load_int32(save + TARGET) * args.state_bytes
            for place in range(args.taps - 1):
                last = simd.load_int32(save + LAST)
                found = row_before(args, step.parents, history, last, args.taps - 2 - place)
                copy_row(found, target + place * args.row_bytes, start, stop)

    return causal_conv


def advance(pointer, worker, work_split):
    """Write to a slot the state of another slot, or its own, after tokens that were kept."""
    args = arguments_at(pointer)
    step = step_at(args.states_step)
    pairs = args.n_vectors // 2
    start, stop = 2 * share_start(work_split, worker, pairs), 2 * share_start(work_split, worker + 1, pairs)
    history, target = args.states + step.source * args.state_bytes, args.states + step.target * args.state_bytes
    for place in range(args.taps - 1):
        at = step.n_nodes + place - (args.taps - 1)  # a token; below 0: in the state, further on than `place`
        found = history + (args.taps - 1 + at) * args.row_bytes
        if at >= 0:
            found = args.kept + simd.load_int32(step.nodes + 4 * at) * args.row_bytes
        copy_row(found, target + place * args.row_bytes, start, stop)
