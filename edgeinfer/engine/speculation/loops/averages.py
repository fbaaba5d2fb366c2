"""How likely tokens were on average: two places after a token, and anywhere, by the model's kept logits.

Memory: a RANKING record; rows (int32 token, float32 mean)[1 << ROW_BITS, KEPT], chosen by the earlier token's lowest
bits; counts int32[1 << ROW_BITS]; usual float32[V], each mean times `scale`. Means decay, so that the latest text
counts most. Tables of successors keep the last place alone; a mean over places says what a text is about.
"""

from __future__ import annotations

import numpy as np

from edgeinfer.engine.speculation.loops.best import token_of
from edgeinfer.engine.speculation.loops.paths import suffix_token, tree_at
from edgeinfer.engine.speculation.records import AVERAGED, BEST, RANKING, ROW_BITS, TOKEN_BITS
from edgeinfer.jit import simd
from edgeinfer.jit.compiler import inline

ranking_at = simd.record_at(RANKING)
ROW_BYTES = 8 * AVERAGED
RATE = np.float32(0.05)
USUAL_RATE = np.float32(0.002)
"""Weights of a new place in the means."""
LARGEST_SCALE = 1e20
NEVER = np.float32(-80.0)


@inline
def _row(ranking, earlier):
    """The address of what came two places after a token."""
    return ranking.rows + ROW_BYTES * (earlier & ((1 << ROW_BITS) - 1))


def learn(state, pointer, node):
    """Add the node's highest logits to the means."""
    tree, ranking = tree_at(pointer), ranking_at(state)
    if tree.n_suffix < 2:
        return
    shares = simd.stack_space(64)
    _share(tree, shares)
    row, rate = _row(ranking, suffix_token(tree, 1)), _decay(ranking, suffix_token(tree, 1))
    if ranking.scale > LARGEST_SCALE:
        _shrink(ranking, tree.n_vocab)
    ranking.scale /= np.float64(1.0) - USUAL_RATE
    for rank in range(BEST):
        token, share = token_of(simd.load_int32(tree.best + 4 * rank)), simd.load_float(shares + 4 * rank)
        if token < tree.n_vocab:
            _add(row, token, rate * share)
            at = ranking.usual + 4 * token
            simd.store_float(at, simd.load_float(at) + np.float32(ranking.scale) * USUAL_RATE * share)


@inline
def _share(tree, shares):
    """Write the probabilities of the kept tokens if there were no others."""
    simd.store(shares, simd.splat(NEVER))
    for rank in range(BEST):
        gap = simd.load_int32(tree.best + 4 * rank) >> TOKEN_BITS if rank > 0 else 0
        simd.store_float(shares + 4 * rank, np.float32(gap) / np.float32(-16.0))
    powers = simd.exp(simd.load(shares))
    simd.store(shares, simd.div(powers, simd.splat(simd.sum_lanes(powers))))


@inline
def _decay(ranking, earlier):
    """Lower the means of a row; returns the weight of the new place."""
    at = ranking.counts + 4 * (earlier & ((1 << ROW_BITS) - 1))
    count = min(simd.load_int32(at) + 1, 1 << 20)
    simd.store_int32(at, count)
    rate, row = max(np.float32(1.0) / np.float32(count), RATE), _row(ranking, earlier)
    for place in range(AVERAGED):
        own = row + 8 * place + 4
        simd.store_float(own, simd.load_float(own) * (np.float32(1.0) - rate))
    return rate


@inline
def _add(row, token, share):
    """Add to the mean of a token; a new one replaces the least likely."""
    rarest, least = 0, np.float32(2.0)
    for place in range(AVERAGED):
        own = simd.load_float(row + 8 * place + 4)
        if own > 0 and simd.load_int32(row + 8 * place) == token:
            simd.store_float(row + 8 * place + 4, own + share)
            return
        if own < least:
            rarest, least = place, own
    if share > least:
        simd.store_int32(row + 8 * rarest, token)
        simd.store_float(row + 8 * rarest + 4, share)


@inline
def _shrink(ranking, n_vocab):
    """Make the scale 1 again, before means exceed what a float32 holds."""
    factor = np.float32(np.float64(1.0) / ranking.scale)
    for token in range(n_vocab):
        at = ranking.usual + 4 * token
        simd.store_float(at, simd.load_float(at) * factor)
    ranking.scale = 1.0


@inline
def two_after(ranking, earlier, token):
    """The mean probability of a token two places after an earlier one."""
    row, found = _row(ranking, earlier), np.float32(0.0)
    for place in range(AVERAGED):
        if simd.load_int32(row + 8 * place) == token:
            found = max(found, simd.load_float(row + 8 * place + 4))
    return found


@inline
def usual(ranking, token):
    """The mean probability of a token."""
    return simd.load_float(ranking.usual + 4 * token) / np.float32(ranking.scale)
