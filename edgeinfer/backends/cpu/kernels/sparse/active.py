"""Activations that count as zero, and which neurons are active: those with another value for some token of a pass.

Memory: values float32[n, stride / 4], zero beyond a row's width. `gated` and `act` serve `ops.GatedAct` and `ops.Act`
with a threshold, split by columns as in `rows`; each worker adds the number of values it kept to its own count.
`mark_active` writes uint32[n_vectors / 2], a bit for each column, and splits pairs of vectors among workers;
`list_active` runs on one worker, after all have marked, and writes the columns in order. NumPy twins:
`graph.activations.cut`, and np.flatnonzero(values.any(axis=0)).
"""

from __future__ import annotations

from edgeinfer.backends.cpu.kernels.work_split import share_start
from edgeinfer.backends.cpu.layout.chosen_records import ACTIVE
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


active_at = simd.record_at(ACTIVE)


def mark_active(pointer, worker, work_split):
    """marks[c / 32] bit c % 32 = whether column c of any row is not zero."""
    args = active_at(pointer)
    count, pairs = simd.load_int64(args.count), args.n_vectors // 2
    for pair in range(share_start(work_split, worker, pairs), share_start(work_split, worker + 1, pairs)):
        bits, at = 0, args.source + 128 * pair
        for _ in range(count):
            bits |= simd.nonzero_lanes(simd.load(at)) | simd.nonzero_lanes(simd.load(at + 64)) << 16
            at += args.stride
        simd.store_int32(args.marks + 4 * pair, bits)


def list_active(pointer, worker, work_split):
    """neurons int32[n_active] = the marked columns, n_active their number: worker 0 alone."""
    args = active_at(pointer)
    n_found = 0
    if worker == 0:
        for pair in range(args.n_vectors // 2):
            bits = simd.load_int32(args.marks + 4 * pair) & 0xFFFFFFFF
            while bits != 0:
                simd.store_int32(args.neurons + 4 * n_found, 32 * pair + simd.trailing_zeros(bits))
                bits &= bits - 1
                n_found += 1
        simd.store_int64(args.n_active, n_found)
