"""Kernels over rows of float32 buffers: norms, activations, addition, caps, zeros, output rows, their peaks.

Memory: buffers float32[n, stride / 4], rows zero-padded to whole vectors of 16. Kernels that split by tokens give each
worker a run of rows. Kernels that split by columns give it a run of pairs of vectors of every row, the same run as a
product of that width, so no barrier is needed between the two. Their NumPy twins are in `backends.reference`. Peaks are
as `base.Peaked` says, split by whole blocks.
"""

from __future__ import annotations

import numpy as np

from edgeinfer.backends.base import PEAK_BLOCK, PEAK_LANES, PEAK_LOGITS
from edgeinfer.backends.cpu.kernels.work_split import share_start
from edgeinfer.backends.cpu.layout.records import COLUMNS, LAYER_NORM, PEAKS, RMS_NORM, TAKE_OUTPUTS
from edgeinfer.jit import simd

layer_norm_at = simd.record_at(LAYER_NORM)
norm_at, columns_at, take_at, peaks_at = (simd.record_at(kind) for kind in (RMS_NORM, COLUMNS, TAKE_OUTPUTS, PEAKS))
LOWEST = np.float32(-3e38)


def rms_norm(pointer, worker, work_split):
    """out = source / sqrt(mean(source^2) + epsilon) * weight: two sums, even and odd vectors, joined at the end."""
    args = norm_at(pointer)
    count = simd.load_int64(args.count)
    for row in range(share_start(work_split, worker, count), share_start(work_split, worker + 1, count)):
        for group in range(args.groups):
            source = args.source + row * args.source_stride + group * args.group_stride
            out = args.out + row * args.out_stride + group * args.group_stride
            even = simd.splat(np.float32(0.0))
            odd = even
            for index in range(0, args.n_vectors, 2):
                value = simd.load(source + index * 64)
                even = simd.fma(value, value, even)
                if index + 1 < args.n_vectors:
                    value = simd.load(source + index * 64 + 64)
                    odd = simd.fma(value, value, odd)
            mean = simd.sum_lanes(simd.add(even, odd)) / args.width
            inverse = simd.splat(np.float32(1.0) / simd.sqrt(mean + args.epsilon))
            weight = args.weight + group * args.weight_stride
            for index in range(args.n_vectors):
                value = simd.mul(simd.load(source + index * 64), inverse)
                simd.store(out + index * 64, simd.mul(value, simd.load(weight + index * 64)))


def layer_norm(pointer, worker, work_split):
    """out = (source - mean) / sqrt(mean((source - mean)^2) + epsilon) * weight + bias, one chain over vectors each."""
    args = layer_norm_at(pointer)
    count, zero = simd.load_int64(args.count), np.float32(0.0)
    for row in range(share_start(work_split, worker, count), share_start(work_split, worker + 1, count)):
        for group in range(args.groups):
            at = group * args.group_stride
            source, out = args.source + row * args.source_stride + at, args.out + row * args.out_stride + at
            total = simd.splat(zero)
            for index in range(args.n_vectors):
                total = simd.add(total, simd.load(source + index * 64))
            mean = simd.splat(simd.sum_lanes(total) / args.width)
            squares = simd.splat(zero)
            for part in range(args.parts):
                stop = (part + 1) * args.period
                for index in range(stop - args.period, stop):
                    value = simd.sub(simd.load(source + index * 64), mean)
                    if index + 1 == stop:  # padding does not count
                        value = simd.keep_lanes(value, 0, args.last, zero)
                    squares = simd.fma(value, value, squares)
            variance = simd.sum_lanes(squares) / args.width
            inverse = simd.splat(np.float32(1.0) / simd.sqrt(variance + args.epsilon))
            for index in range(args.n_vectors):
                place = at + index * 64
                value = simd.mul(simd.sub(simd.load(source + index * 64), mean), inverse)
                value = simd.fma(value, simd.load(args.weight + place), simd.load(args.bias + place))
                simd.store(out + index * 64, value)


def gated(activation):
    """The kernel out = activation(source) * other, by columns."""

    def gated(pointer, worker, work_split):
        args = columns_at(pointer)
        pairs = args.n_vectors // 2
        for row in range(simd.load_int64(args.count)):
            for index in range(
                2 * share_start(work_split, worker, pairs), 2 * share_start(work_split, worker + 1, pairs)
            ):
                at = row * args.stride + index * 64
                gate = simd.activated(activation, simd.load(args.source + at))
                other = simd.load(args.other + row * args.other_stride + index * 64)
                simd.store(args.out + at, simd.mul(gate, other))

    return gated


def act(activation):
    """The kernel out = activation(source), by columns."""

    def act(pointer, worker, work_split):
        args = columns_at(pointer)
        pairs = args.n_vectors // 2
        for row in range(simd.load_int64(args.count)):
            for index in range(
                2 * share_start(work_split, worker, pairs), 2 * share_start(work_split, worker + 1, pairs)
            ):
                at = row * args.stride + index * 64
                simd.store(args.out + at, simd.activated(activation, simd.load(args.source + at)))

    return act


def clip(pointer, worker, work_split):
    """out = source, but not outside least to most, by columns."""
    args = columns_at(pointer)
    pairs = args.n_vectors // 2
    least, below, zero = simd.splat(args.least), simd.splat(-args.most), simd.splat(np.float32(0.0))
    for row in range(simd.load_int64(args.count)):
        for index in range(2 * share_start(work_split, worker, pairs), 2 * share_start(work_split, worker + 1, pairs)):
            at = row * args.stride + index * 64
            turned = simd.sub(zero, simd.maximum(least, simd.load(args.source + at)))  # NaN stays NaN
            simd.store(args.out + at, simd.sub(zero, simd.maximum(below, turned)))


def xielu(pointer, worker, work_split):
    """out = xielu(source), by columns."""
    args = columns_at(pointer)
    pairs = args.n_vectors // 2
    rise, fall, slope = simd.splat(args.rise), simd.splat(args.fall), simd.splat(args.slope)
    edge = simd.splat(args.edge)
    for row in range(simd.load_int64(args.count)):
        for index in range(2 * share_start(work_split, worker, pairs), 2 * share_start(work_split, worker + 1, pairs)):
            at = row * args.stride + index * 64
            simd.store(args.out + at, simd.xielu(simd.load(args.source + at), rise, fall, slope, edge))


def add_rows(pointer, worker, work_split):
    """out += source, by columns."""
    args = columns_at(pointer)
    pairs = args.n_vectors // 2
    for row in range(simd.load_int64(args.count)):
        for index in range(2 * share_start(work_split, worker, pairs), 2 * share_start(work_split, worker + 1, pairs)):
            at = row * args.stride + index * 64
            simd.store(args.out + at, simd.add(simd.load(args.out + at), simd.load(args.source + at)))


def add_scaled(pointer, worker, work_split):
    """out += scale * cap * source, by columns, in rows whose scale is not 0; `other` has a float32 scale per row."""
    args = columns_at(pointer)
    pairs = args.n_vectors // 2
    for row in range(simd.load_int64(args.count)):
        scale = simd.load_float(args.other + 4 * row)
        if scale == np.float32(0.0):
            continue
        factor = simd.splat(scale * args.cap)
        for index in range(2 * share_start(work_split, worker, pairs), 2 * share_start(work_split, worker + 1, pairs)):
            at = row * args.stride + index * 64
            simd.store(args.out + at, simd.fma(factor, simd.load(args.source + at), simd.load(args.out + at)))


def add_vector(pointer, worker, work_split):
    """out += source, one row for all, by columns."""
    args = columns_at(pointer)
    pairs = args.n_vectors // 2
    for row in range(simd.load_int64(args.count)):
        for index in range(2 * share_start(work_split, worker, pairs), 2 * share_start(work_split, worker + 1, pairs)):
            at = row * args.stride + index * 64
            simd.store(args.out + at, simd.add(simd.load(args.out + at), simd.load(args.source + index * 64)))


def mul_vector(pointer, worker, work_split):
    """out *= source, one row for all, by columns."""
    args = columns_at(pointer)
    pairs = args.n_vectors // 2
    for row in range(simd.load_int64(args.count)):
        for index in range(2 * share_start(work_split, worker, pairs), 2 * share_start(work_split, worker + 1, pairs)):
            at = row * args.stride + index * 64
            simd.store(args.out + at, simd.mul(simd.load(args.out + at), simd.load(args.source + index * 64)))


def soft_cap(pointer, worker, work_split):
    """out = cap * tanh(source / cap), by columns."""
    args = columns_at(pointer)
    cap = simd.splat(args.cap)
    pairs = args.n_vectors // 2
    for row in range(simd.load_int64(args.count)):
        for index in range(2 * share_start(work_split, worker, pairs), 2 * share_start(work_split, worker + 1, pairs)):
            at = row * args.stride + index * 64
            simd.store(args.out + at, simd.mul(cap, simd.tanh(simd.div(simd.load(args.source + at), cap))))


def scale_rows(pointer, worker, work_split):
    """out = cap * source, by columns; the record calls the factor `cap`."""
    args = columns_at(pointer)
    factor = simd.splat(args.cap)
    pairs = args.n_vectors // 2
    for row in range(simd.load_int64(args.count)):
        for index in range(2 * share_start(work_split, worker, pairs), 2 * share_start(work_split, worker + 1, pairs)):
            at = row * args.stride + index * 64
            simd.store(args.out + at, simd.mul(simd.load(args.source + at), factor))


def zero_rows(pointer, worker, work_split):
    """out = 0, by columns."""
    args = columns_at(pointer)
    zero = simd.splat(np.float32(0.0))
    pairs = args.n_vectors // 2
    for row in range(simd.load_int64(args.count)):
        for index in range(2 * share_start(work_split, worker, pairs), 2 * share_start(work_split, worker + 1, pairs)):
            simd.store(args.out + row * args.stride + index * 64, zero)


def find_peaks(pointer, worker, work_split):
    """The highest of each lane of a block; a value that is not finite makes the lane's peak NaN, as 0 * it is NaN."""
    args = peaks_at(pointer)
    count, n_blocks = simd.load_int64(args.count), (args.width + PEAK_BLOCK - 1) // PEAK_BLOCK
    zero = simd.splat(np.float32(0.0))
    for row in range(count):
        for block in range(share_start(work_split, worker, n_blocks), share_start(work_split, worker + 1, n_blocks)):
            source, left = args.source + row * args.stride + block * 4 * PEAK_BLOCK, args.width - block * PEAK_BLOCK
            highest, strange = simd.splat(LOWEST), zero
            for index in range(min(PEAK_LOGITS, left // PEAK_LANES)):
                value = simd.load(source + 64 * index)
                highest, strange = simd.maximum(value, highest), simd.fma(value, zero, strange)
            if left < PEAK_BLOCK and left % PEAK_LANES != 0:
                value = simd.load(source + left // PEAK_LANES * 64)
                value = simd.keep_lanes(value, 0, left % PEAK_LANES, LOWEST)
                highest, strange = simd.maximum(value, highest), simd.fma(value, zero, strange)
            simd.store(args.out + row * args.out_stride + block * 4 * PEAK_LANES, simd.add(highest, strange))


def take_outputs(pointer, worker, work_split):
    """out[o] = source[outputs[o]], by tokens."""
    args = take_at(pointer)
    count = simd.load_int64(args.count)
    outputs = simd.load_int64(args.outputs)
    for row in range(share_start(work_split, worker, count), share_start(work_split, worker + 1, count)):
        source = args.source + simd.load_int32(outputs + 4 * row) * args.stride
        for index in range(args.n_vectors):
            simd.store(args.out + row * args.stride + index * 64, simd.load(source + index * 64))
