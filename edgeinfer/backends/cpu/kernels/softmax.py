"""The softmax of attention, chunk by chunk: shares of one chunk's positions, and joining partial results.

Memory: scores float32[CHUNK] of a row. A partial or a total is float32[16 + head_padded]: largest score, sum of shares,
padding, blend of values; partials are joined in order of position.
"""

from __future__ import annotations

import numpy as np

from edgeinfer.backends.cpu import simd
from edgeinfer.backends.cpu.jit import inline
from edgeinfer.backends.cpu.layout import CHUNK

SCORE_BYTES = CHUNK * 4
LOWEST = -1e30


@inline
def cap_scores(scores, cap, n_vectors):
    """scores = cap * tanh(scores / cap)."""
    limit = simd.splat(cap)
    for index in range(0, 64 * n_vectors, 64):
        simd.store(scores + index, simd.mul(limit, simd.tanh(simd.div(simd.load(scores + index), limit))))


@inline
def softmax_chunk(scores, first, stop, n_vectors):
    """Turn scores of positions first..stop-1 into e^(score - largest), the rest into 0. Returns (largest, sum)."""
    lowest = simd.splat(np.float32(LOWEST))
    largest, total = lowest, simd.splat(np.float32(0.0))
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
def join_partial(total, partial, head_padded):
    """Add a later chunk's partial to the running one; a partial without any position changes nothing."""
    before, new = simd.load_float(total), simd.load_float(partial)
    largest = max(before, new)
    keep, take = simd.exp(simd.splat(before - largest)), simd.exp(simd.splat(new - largest))
    share = simd.mul(simd.splat(simd.load_float(total + 4)), keep)
    simd.store(total, simd.fma(simd.splat(simd.load_float(partial + 4)), take, share))
    simd.store_float(total + 4, simd.load_float(total))
    simd.store_float(total, largest)
    for index in range(64, 64 + head_padded * 4, 64):
        kept = simd.mul(simd.load(total + index), keep)
        simd.store(total + index, simd.fma(simd.load(partial + index), take, kept))


@inline
def start_total(total, head_padded):
    """An empty running result."""
    for index in range(0, 64 + head_padded * 4, 64):
        simd.store(total + index, simd.splat(np.float32(0.0)))
    simd.store_float(total, np.float32(LOWEST))


@inline
def write_result(total, out, head_width):
    """out[k] = blend / sum, for the head's real width."""
    inverse = np.float32(1.0) / simd.load_float(total + 4)
    whole = head_width // 16 * 16
    for index in range(0, whole * 4, 64):
        simd.store(out + index, simd.mul(simd.load(total + 64 + index), simd.splat(inverse)))
    for index in range(whole * 4, head_width * 4, 4):
        simd.store_float(out + index, simd.load_float(total + 64 + index) * inverse)
