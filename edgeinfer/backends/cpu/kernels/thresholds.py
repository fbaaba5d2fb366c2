"""Activations that count as zero below a threshold.

Memory: values float32[n, stride / 4], zero beyond a row's width. `gated` and `act` serve `ops.GatedAct` and `ops.Act`
with a threshold, split by columns as in `rows`; each worker adds the number of values it kept to its own count. NumPy
twin: `graph.activations.cut`.
"""

from __future__ import annotations

from edgeinfer.backends.cpu.kernels.work_split import share_start
from edgeinfer.backends.cpu.layout.records import COUNT_LINE, CUT_COLUMNS
from edgeinfer.jit import simd

columns_at = simd.record_at(CUT_COLUMNS)


def gated(activation):
    """The kernel out = cut(activation(source)) * other, by columns."""

    def cut_gated(pointer, worker, work_split):
        args = columns_at(pointer)
        pairs, least, n_kept = args.n_vectors // 2, simd.splat(args.threshold), 0
        for row in range(simd.load_int64(args.count)):
            for index in range(
                2 * share_start(work_split, worker, pairs), 2 * share_start(work_split, worker + 1, pairs)
            ):
                at = row * args.stride + index * 64
                gate = simd.keep_from(simd.activated(activation, simd.load(args.source + at)), least)
                n_kept += simd.count_bits(simd.nonzero_lanes(gate))
                simd.store(args.out + at, simd.mul(gate, simd.load(args.other + at)))
        own = args.kept + COUNT_LINE * worker
        simd.store_int64(own, simd.load_int64(own) + n_kept)

    return cut_gated


def act(activation):
    """The kernel out = cut(activation(source)), by columns."""

    def cut_act(pointer, worker, work_split):
        args = columns_at(pointer)
        pairs, least, n_kept = args.n_vectors // 2, simd.splat(args.threshold), 0
        for row in range(simd.load_int64(args.count)):
            for index in range(
                2 * share_start(work_split, worker, pairs), 2 * share_start(work_split, worker + 1, pairs)
            ):
                at = row * args.stride + index * 64
                value = simd.keep_from(simd.activated(activation, simd.load(args.source + at)), least)
                n_kept += simd.count_bits(simd.nonzero_lanes(value))
                simd.store(args.out + at, value)
        own = args.kept + COUNT_LINE * worker
        simd.store_int64(own, simd.load_int64(own) + n_kept)

    return cut_act
