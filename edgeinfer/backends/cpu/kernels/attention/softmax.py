"""The softmax of attention, chunk by chunk: the shares of a chunk's positions, and the joining of partial results.

Memory: scores float32[CHUNK] of a row. A partial or a total is float32[16 + padded]: largest score, sum of shares,
padding, blend of values padded to whole vectors; partials are joined in order of position.
"""

from __future__ import annotations

import numpy as np

from edgeinfer.backends.cpu.layout.padding import BIAS_REACH, BIASES, SCORE_BYTES
from edgeinfer.jit import simd
from edgeinfer.jit.compiler import inline

LOWEST = -1e30
FACTORS_BYTES = 2 * 64


@inline
def cap_scores(scores, cap, n_vectors):
    """scores = cap * tanh(scores / cap)."""
    limit = simd.splat(cap)
    for index in range(0, 64 * n_vectors, 64):
        simd.store(scores + index, simd.mul(limit, simd.tanh(simd.div(simd.load(scores + index), limit))))


@inline
def is_bent(args):
    """Whether `bend_scores` changes anything."""
    return args.cap != np.float32(0.0) or args.slopes != 0 or args.biases != 0


@inline
def bend_scores(args, head, distance, scores, n_vectors):
    """Cap a row's scores, then lower each by the head's slope times how far away it is, the first by `distance`.

    Then add the head's bias for each distance. Vectors beyond the reach of the biases all read the outermost ones.
    """
    if args.cap != np.float32(0.0):
        cap_scores(scores, args.cap, n_vectors)
    if args.slopes != 0:
        slope = simd.splat(-simd.load_float(args.slopes + 64 + 4 * head))
        for vector in range(n_vectors):
            away = simd.add(simd.load(args.slopes), simd.splat(np.float32(distance + 16 * vector)))
            at = scores + 64 * vector
            simd.store(at, simd.fma(slope, simd.absolute(away), simd.load(at)))
    if args.biases != 0:
        middle = args.biases + 4 * (BIASES * head + BIAS_REACH)
        for vector in range(n_vectors):
            first = min(max(distance + 16 * vector, -BIAS_REACH), BIAS_REACH - 15)
            at = scores + 64 * vector
            simd.store(at, simd.add(simd.load(at), simd.load(middle + 4 * first)))


@inline
def softmax_chunk(scores, first, stop, n_vectors):
    """Turn scores of positions first..stop-1 into e^(score - largest), the rest into 0. Returns (largest, sum)."""
    largest, total = simd.splat(np.float32(LOWEST)), simd.splat(np.float32(0.0))
    if first <= 0 and stop >= 16 * n_vectors:
        for vector in range(n_vectors):
            largest = simd.maximum(largest, simd.load(scores + 64 * vector))
        most = simd.max_lanes(largest)
        for vector in range(n_vectors):
            value = simd.exp(simd.sub(simd.load(scores + 64 * vector), simd.splat(most)))
            simd.store(scores + 64 * vector, value)
            total = simd.add(total, value)
        return most, simd.sum_lanes(total)
    for vector in range(n_vectors):
        value = simd.load(scores + 64 * vector)
        value = simd.keep_lanes(value, first - 16 * vector, stop - 16 * vector, np.float32(LOWEST))
        largest = simd.maximum(largest, value)
    most = simd.max_lanes(largest)
    for vector in range(n_vectors):
        value = simd.exp(simd.sub(simd.load(scores + 64 * vector), simd.splat(most)))
        value = simd.keep_lanes(value, first - 16 * vector, stop - 16 * vector, np.float32(0.0))
        simd.store(scores + 64 * vector, value)
        total = simd.add(total, value)
    return most, simd.sum_lanes(total)


@inline
def softmax_rows(scores, count, first, stop, n_vectors, to, stride):
    """`softmax_chunk` of 1 to 4 rows that see the same positions; stores largest and sum at `to`, `stride` bytes apart.

    The operations and their order are the same, but four chains run at once: a single one would wait for itself. With
    fewer rows the last one is repeated, which changes nothing: all four are loaded before any is stored.
    """
    one, two, three = min(1, count - 1), min(2, count - 1), count - 1
    second, third, fourth = scores + one * SCORE_BYTES, scores + two * SCORE_BYTES, scores + three * SCORE_BYTES
    if first > 0 or stop < 16 * n_vectors:
        for vector in range(n_vectors):
            begin, end, at = first - 16 * vector, stop - 16 * vector, 64 * vector
            if begin > 0 or end < 16:
                for row in range(count):
                    place = scores + row * SCORE_BYTES + at
                    simd.store(place, simd.keep_lanes(simd.load(place), begin, end, np.float32(LOWEST)))
    top0 = top1 = top2 = top3 = simd.splat(np.float32(LOWEST))
    for at in range(0, 64 * n_vectors, 64):
        top0, top1 = simd.maximum(top0, simd.load(scores + at)), simd.maximum(top1, simd.load(second + at))
        top2, top3 = simd.maximum(top2, simd.load(third + at)), simd.maximum(top3, simd.load(fourth + at))
    most0, most1, most2, most3 = simd.max_lanes(top0), simd.max_lanes(top1), simd.max_lanes(top2), simd.max_lanes(top3)
    sum0 = sum1 = sum2 = sum3 = simd.splat(np.float32(0.0))
    for vector in range(n_vectors):
        begin, end, at = first - 16 * vector, stop - 16 * vector, 64 * vector
        share0 = simd.exp(simd.sub(simd.load(scores + at), simd.splat(most0)))
        share1 = simd.exp(simd.sub(simd.load(second + at), simd.splat(most1)))
        share2 = simd.exp(simd.sub(simd.load(third + at), simd.splat(most2)))
        share3 = simd.exp(simd.sub(simd.load(fourth + at), simd.splat(most3)))
        if begin > 0 or end < 16:
            share0 = simd.keep_lanes(share0, begin, end, np.float32(0.0))
            share1 = simd.keep_lanes(share1, begin, end, np.float32(0.0))
            share2 = simd.keep_lanes(share2, begin, end, np.float32(0.0))
            share3 = simd.keep_lanes(share3, begin, end, np.float32(0.0))
        simd.store(scores + at, share0)
        simd.store(second + at, share1)
        simd.store(third + at, share2)
        simd.store(fourth + at, share3)
        sum0, sum1 = simd.add(sum0, share0), simd.add(sum1, share1)
        sum2, sum3 = simd.add(sum2, share2), simd.add(sum3, share3)
    store_largest_and_sum(to, most0, simd.sum_lanes(sum0))
    store_largest_and_sum(to + one * stride, most1, simd.sum_lanes(sum1))
    store_largest_and_sum(to + two * stride, most2, simd.sum_lanes(sum2))
    store_largest_and_sum(to + three * stride, most3, simd.sum_lanes(sum3))


@inline
def store_largest_and_sum(partial, largest, total):
    """Write the head of a partial result."""
    simd.store_float(partial, largest)
    simd.store_float(partial + 4, total)


@inline
def join_factors(factors):
    """The factors by which totals and partials are multiplied when they are joined, 16 at a time.

    factors float32[2, 16]: in, the largest scores of the totals and of the partials; out, the factor of each.
    """
    before, new = simd.load(factors), simd.load(factors + 64)
    largest = simd.maximum(before, new)
    simd.store(factors, simd.exp(simd.sub(before, largest)))
    simd.store(factors + 64, simd.exp(simd.sub(new, largest)))


@inline
def join_partial(total, partial, padded, factor):
    """Add a later chunk's partial to the running one; a partial without positions changes nothing.

    `factor`: address of the total's factor; the partial's lies 64 bytes on.
    """
    keep, take = simd.splat(simd.load_float(factor)), simd.splat(simd.load_float(factor + 64))
    largest = max(simd.load_float(total), simd.load_float(partial))
    share = simd.mul(simd.splat(simd.load_float(total + 4)), keep)
    simd.store(total, simd.fma(simd.splat(simd.load_float(partial + 4)), take, share))
    simd.store_float(total + 4, simd.load_float(total))
    simd.store_float(total, largest)
    for index in range(64, 64 + padded * 4, 64):
        kept = simd.mul(simd.load(total + index), keep)
        simd.store(total + index, simd.fma(simd.load(partial + index), take, kept))


@inline
def join_rows(totals, partials, stride, rows, padded):
    """Add the partials of a later chunk to the totals of some rows, `stride` bytes apart."""
    factors = simd.stack_space(FACTORS_BYTES)
    for first in range(0, rows, 16):
        count = min(16, rows - first)
        total, partial = totals + first * stride, partials + first * stride
        for row in range(count):
            simd.store_float(factors + 4 * row, simd.load_float(total + row * stride))
            simd.store_float(factors + 64 + 4 * row, simd.load_float(partial + row * stride))
        join_factors(factors)
        for row in range(count):
            join_partial(total + row * stride, partial + row * stride, padded, factors + 4 * row)


@inline
def join_run(total, partials, stride, count, padded):
    """Add the `count` partials of successive chunks, `stride` bytes apart, to one total."""
    factors = simd.stack_space(FACTORS_BYTES)
    for first in range(0, count, 16):
        group, largest = min(16, count - first), simd.load_float(total)
        for place in range(group):
            new = simd.load_float(partials + (first + place) * stride)
            simd.store_float(factors + 4 * place, largest)
            simd.store_float(factors + 64 + 4 * place, new)
            largest = max(largest, new)
        join_factors(factors)
        for place in range(group):
            join_partial(total, partials + (first + place) * stride, padded, factors + 4 * place)


@inline
def start_total(total, padded):
    """Write an empty running result."""
    for index in range(0, 64 + padded * 4, 64):
        simd.store(total + index, simd.splat(np.float32(0.0)))
    simd.store_float(total, np.float32(LOWEST))


@inline
def write_result(total, out, width):
    """out[k] = blend / sum, for the head's unpadded width."""
    inverse = np.float32(1.0) / simd.load_float(total + 4)
    whole = width // 16 * 16
    for index in range(0, whole * 4, 64):
        simd.store(out + index, simd.mul(simd.load(total + 64 + index), simd.splat(inverse)))
    for index in range(whole * 4, width * 4, 4):
        simd.store_float(out + index, simd.load_float(total + 64 + index) * inverse)
