"""Kernels that change rows by their mean and spread, by tokens: a magnitude matched, the highest values kept.

Memory: buffers float32[n, stride / 4], rows zero-padded to whole vectors of 16. Their NumPy twins are in `graph.ops`.
"""

from __future__ import annotations

import numpy as np

from edgeinfer.backends.cpu.kernels.work_split import share_start
from edgeinfer.backends.cpu.layout.part_records import KEEP_HIGHEST, MATCH_MAGNITUDE
from edgeinfer.jit import simd

match_at, keep_at = simd.record_at(MATCH_MAGNITUDE), simd.record_at(KEEP_HIGHEST)


def match_magnitude(pointer, worker, work_split):
    """value *= sqrt(mean(target^2)) / sqrt(max(mean(value^2), least)), one chain over vectors for each sum."""
    args = match_at(pointer)
    count = simd.load_int64(args.count)
    for row in range(share_start(work_split, worker, count), share_start(work_split, worker + 1, count)):
        value, target = args.value + row * args.value_stride, args.target + row * args.target_stride
        own = simd.splat(np.float32(0.0))
        wanted = own
        for index in range(args.n_vectors):
            held, aim = simd.load(value + index * 64), simd.load(target + index * 64)
            own, wanted = simd.fma(held, held, own), simd.fma(aim, aim, wanted)
        mean = max(simd.sum_lanes(own) / args.width, args.least)
        factor = simd.splat(simd.sqrt(simd.sum_lanes(wanted) / args.width) / simd.sqrt(mean))
        for index in range(args.n_vectors):
            simd.store(value + index * 64, simd.mul(simd.load(value + index * 64), factor))


def keep_highest(pointer, worker, work_split):
    """value = max(value - mean - deviations * spread, 0), one chain over vectors for each sum."""
    args = keep_at(pointer)
    count, zero = simd.load_int64(args.count), np.float32(0.0)
    nothing = simd.splat(zero)
    for row in range(share_start(work_split, worker, count), share_start(work_split, worker + 1, count)):
        value = args.value + row * args.stride
        total = nothing
        for index in range(args.n_vectors):
            total = simd.add(total, simd.load(value + index * 64))
        mean = simd.sum_lanes(total) / args.width
        middle, squares = simd.splat(mean), nothing
        for index in range(args.n_vectors):
            apart = simd.sub(simd.load(value + index * 64), middle)
            if index + 1 == args.n_vectors:  # padding does not count
                apart = simd.keep_lanes(apart, 0, args.last, zero)
            squares = simd.fma(apart, apart, squares)
        cut = simd.splat(mean + args.deviations * simd.sqrt(simd.sum_lanes(squares) / args.width))
        for index in range(args.n_vectors):
            kept = simd.maximum(simd.sub(simd.load(value + index * 64), cut), nothing)
            if index + 1 == args.n_vectors:
                kept = simd.keep_lanes(kept, 0, args.last, zero)
            simd.store(value + index * 64, kept)
