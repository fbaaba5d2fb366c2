"""The highest logits after a token, in the packed form that tables hold.

Memory: logits float32[V] and their peaks, as described in `base.Peaked`, or 0; out int32[BEST], highest first. Each
entry is a token, and above its TOKEN_BITS how far its logit lies below the highest one (for the highest: above the
second), in sixteenths. Equal logits are ordered as found: lower tokens first, or with peaks those of lower lanes.
"""

from __future__ import annotations

import numpy as np

from edgeinfer.backends.base import PEAK_BLOCK, PEAK_LANES
from edgeinfer.engine.speculation.records import BEST, GAP_EDGES, GAPS, MOST_GAP, TOKEN_BITS, TOKEN_MASK
from edgeinfer.jit import simd
from edgeinfer.jit.compiler import inline

RUN = 64
"""Logits that are examined together: most runs contain none of the highest."""
LOWEST = np.float32(-3e38)


@inline
def pack_best(logits, peaks, n_vocab, out):
    """Find the highest logits of a row."""
    values, tokens = simd.stack_space(64), simd.stack_space(64)
    for place in range(BEST):
        simd.store_float(values + 4 * place, LOWEST)
        simd.store_int32(tokens + 4 * place, 0)
    if peaks != 0:
        _take_by_peaks(logits, peaks, n_vocab, values, tokens)
    else:
        _take_all(logits, n_vocab, values, tokens)
    first = simd.load_float(values)
    for place in range(BEST):
        gap = first - simd.load_float(values + 4 * max(place, 1))
        sixteenths = np.int64(min(gap * np.float32(16.0), np.float32(MOST_GAP)))
        simd.store_int32(out + 4 * place, simd.load_int32(tokens + 4 * place) | sixteenths << TOKEN_BITS)


@inline
def _take_all(logits, n_vocab, values, tokens):
    """Search all logits, many at a time."""
    edge = LOWEST
    whole = n_vocab // RUN * RUN
    for start in range(0, whole, RUN):
        at = logits + 4 * start
        low = simd.maximum(simd.load(at), simd.load(at + 64))
        high = simd.maximum(simd.load(at + 128), simd.load(at + 192))
        if simd.max_lanes(simd.maximum(low, high)) > edge:
            edge = _take(logits, start, start + RUN, 1, values, tokens, edge)
    _take(logits, whole, n_vocab, 1, values, tokens, edge)


@inline
def _take_by_peaks(logits, peaks, n_vocab, values, tokens):
    """Search only where a peak says that there may be a high logit."""
    edge = LOWEST
    for block in range((n_vocab + PEAK_BLOCK - 1) // PEAK_BLOCK):
        at, start = peaks + 4 * PEAK_LANES * block, block * PEAK_BLOCK
        if simd.max_lanes(simd.load(at)) > edge:
            stop = min(start + PEAK_BLOCK, n_vocab)
            for lane in range(PEAK_LANES):
                if simd.load_float(at + 4 * lane) > edge:
                    edge = _take(logits, start + lane, stop, PEAK_LANES, values, tokens, edge)


@inline
def are_numbers(peaks, n_vocab):
    """Whether all logits of a row are finite."""
    zero = simd.splat(np.float32(0.0))
    strange = zero
    for block in range((n_vocab + PEAK_BLOCK - 1) // PEAK_BLOCK):
        strange = simd.fma(simd.load(peaks + 4 * PEAK_LANES * block), zero, strange)
    return simd.sum_lanes(strange) == np.float32(0.0)


@inline
def _take(logits, start, stop, step, values, tokens, edge):
    """Insert the values above `edge`. Returns the lowest value that is kept now."""
    for token in range(start, stop, step):
        value = simd.load_float(logits + 4 * token)
        if value > edge:
            place = BEST - 1
            while place > 0 and simd.load_float(values + 4 * place - 4) < value:
                simd.store_float(values + 4 * place, simd.load_float(values + 4 * place - 4))
                simd.store_int32(tokens + 4 * place, simd.load_int32(tokens + 4 * place - 4))
                place -= 1
            simd.store_float(values + 4 * place, value)
            simd.store_int32(tokens + 4 * place, token)
            edge = simd.load_float(values + 4 * BEST - 4)
    return edge


@inline
def token_of(packed):
    """The token of a packed logit."""
    return packed & TOKEN_MASK


@inline
def standing(packed, rank):
    """Rank and gap of a packed logit, in 0 .. BEST * GAPS - 1: its bucket."""
    gap = packed >> TOKEN_BITS
    place = rank * GAPS
    for edge in range(GAPS - 1):
        place += gap >= GAP_EDGES[edge]
    return place
