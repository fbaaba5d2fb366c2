"""Kernels over rows of several equal parts, by tokens: parts mixed, a row added to parts, heads gated.

Memory: buffers float32[n, stride / 4]; a part is whole vectors of 16. Factors are read one by one. Their NumPy twins
are in `graph.ops`.
"""

from __future__ import annotations

import numpy as np

from edgeinfer.backends.cpu.kernels.work_split import share_start
from edgeinfer.backends.cpu.layout.part_records import PARTS
from edgeinfer.jit import simd

parts_at = simd.record_at(PARTS)


def mix_parts(pointer, worker, work_split):
    """out's part i = source's part i + the sum over j of factors[i * parts + j] * source's part j, in order of j."""
    args = parts_at(pointer)
    count = simd.load_int64(args.count)
    for row in range(share_start(work_split, worker, count), share_start(work_split, worker + 1, count)):
        source, factors = args.source + row * args.source_stride, args.factors + row * args.factors_stride
        for part in range(args.parts):
            own, out = part * args.part_bytes, args.out + row * args.out_stride + part * args.part_bytes
            for at in range(0, args.part_bytes, 64):
                total = simd.load(source + own + at)
                for other in range(args.parts):
                    factor = simd.splat(simd.load_float(factors + 4 * (part * args.parts + other)))
                    total = simd.fma(factor, simd.load(source + other * args.part_bytes + at), total)
                simd.store(out + at, total)


def add_to_parts(pointer, worker, work_split):
    """out's part i += (1 + factors[i]) * source, from part `first` on."""
    args = parts_at(pointer)
    count, one = simd.load_int64(args.count), np.float32(1.0)
    for row in range(share_start(work_split, worker, count), share_start(work_split, worker + 1, count)):
        source, factors = args.source + row * args.source_stride, args.factors + row * args.factors_stride
        for part in range(args.first, args.parts):
            out, share = args.out + row * args.out_stride + part * args.part_bytes, one
            if args.factors != 0:
                share += simd.load_float(factors + 4 * part)
            factor = simd.splat(share)
            for at in range(0, args.part_bytes, 64):
                simd.store(out + at, simd.fma(factor, simd.load(source + at), simd.load(out + at)))


def gated_heads(pointer, worker, work_split):
    """out's part i *= softplus(factors[i])."""
    args = parts_at(pointer)
    count = simd.load_int64(args.count)
    for row in range(share_start(work_split, worker, count), share_start(work_split, worker + 1, count)):
        for part in range(args.parts):
            out = args.out + row * args.out_stride + part * args.part_bytes
            gate = simd.splat(simd.load_float(args.factors + row * args.factors_stride + 4 * part))
            factor = simd.activated("softplus", gate)
            for at in range(0, args.part_bytes, 64):
                simd.store(out + at, simd.mul(factor, simd.load(out + at)))
