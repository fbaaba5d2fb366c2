"""Rotary embedding in place, and heads joined from a rotated and an unrotated part.

Memory: value float32[n, stride / 4], heads `head_stride` bytes apart; cosines and sines float32[rows, half], with a
token's row given by the step; for `join_heads` each buffer is laid out like the value, with its own strides. The twins
are the definitions of the ops.
"""

from __future__ import annotations

from edgeinfer.backends.cpu.kernels.work_split import share_start
from edgeinfer.backends.cpu.layout.records import JOIN_HEADS, ROPE
from edgeinfer.backends.cpu.layout.step_records import STEP
from edgeinfer.jit import simd
from edgeinfer.jit.compiler import inline

arguments_at, joining_at = simd.record_at(ROPE), simd.record_at(JOIN_HEADS)

step_at = simd.record_at(STEP)


def rope(pointer, worker, work_split):
    """Rotate pairs (i, i + half) of every head by the angles of the token's row, by tokens and groups of heads."""
    args = arguments_at(pointer)
    step = step_at(args.step)
    count, half = step.n_tokens * args.parts, args.half
    whole, heads = half // 16 * 16, args.heads // args.parts
    for unit in range(share_start(work_split, worker, count), share_start(work_split, worker + 1, count)):
        token, part = unit // args.parts, unit % args.parts
        at = simd.load_int32(step.turns + 4 * token) * half * 4
        cosines, sines = args.cosines + at, args.sines + at
        for head in range(part * heads, (part + 1) * heads):
            first = args.value + token * args.stride + head * args.head_stride
            second = first + half * 4
            for index in range(0, whole * 4, 64):
                x, y = simd.load(first + index), simd.load(second + index)
                cos, sin = simd.load(cosines + index), simd.load(sines + index)
                simd.store(first + index, simd.sub(simd.mul(x, cos), simd.mul(y, sin)))
                simd.store(second + index, simd.add(simd.mul(x, sin), simd.mul(y, cos)))
            for index in range(whole * 4, half * 4, 4):
                x_last, y_last = simd.load_float(first + index), simd.load_float(second + index)
                cos_last, sin_last = simd.load_float(cosines + index), simd.load_float(sines + index)
                simd.store_float(first + index, x_last * cos_last - y_last * sin_last)
                simd.store_float(second + index, x_last * sin_last + y_last * cos_last)


@inline
def copy_floats(source, target, count):
    """Copy floats, 16 at a time and the rest one by one."""
    whole = count // 16 * 16
    for index in range(0, whole * 4, 64):
        simd.store(target + index, simd.load(source + index))
    for index in range(whole * 4, count * 4, 4):
        simd.store_float(target + index, simd.load_float(source + index))


def join_heads(pointer, worker, work_split):
    """Join each head of a token: its part in the first buffer, then its part in the second."""
    args = joining_at(pointer)
    count = simd.load_int64(args.count)
    for token in range(share_start(work_split, worker, count), share_start(work_split, worker + 1, count)):
        first, second = args.first + token * args.first_stride, args.second + token * args.second_stride
        out = args.out + token * args.out_stride
        for head in range(args.heads):
            target = out + head * args.out_head_stride
            copy_floats(first + head * args.first_head_stride, target, args.first_width)
            target += args.first_width * 4
            copy_floats(second + head * args.second_head_stride, target, args.second_width)
