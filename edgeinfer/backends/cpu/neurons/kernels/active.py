"""Which neurons are active: those with a value other than zero for some token of a pass.

Memory: values float32[n, stride / 4], zero beyond a row's width. `mark_active` writes uint32[n_vectors / 2], a bit for
each column, and splits pairs of vectors among workers; `list_active` runs on one worker, after all have marked, and
writes the columns in order. NumPy twin: np.flatnonzero(values.any(axis=0)).
"""

from __future__ import annotations

from edgeinfer.backends.cpu.kernels.work_split import share_start
from edgeinfer.backends.cpu.neurons.kernels.records import ACTIVE
from edgeinfer.jit import simd

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
