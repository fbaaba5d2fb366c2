"""The probability that a drawn token is each candidate of a node, given the noise that all of them have in that draw.

Memory: a RANKING record, its weights float32[FACTS + n_draft_sources + 2, UNITS]. The token drawn is the one with the
highest ln p + g (`requests.noise`). Estimates of p are uncertain, so the highest estimate + g need not win; but the
noise of rivals is known as well as a candidate's own: unlucky rivals leave it more. A small network gives each
candidate a score from its estimate, what each draft source says of it, means of earlier logits, penalties, its noise
and its node, and another score to all tokens that nobody proposed; probabilities are proportional to e^score. Rows: the
weights of a layer of UNITS rectified units, for each fact (`rank`, `_score`), then for each draft source; the
weights of the units' sum; and those of the other tokens, the first four. Made by `scripts/train_ranking.py`. Weights do
not learn, as the table of `loops.wins` does: in a text unlike all that they were made from, that table may be closer to
what is drawn, so candidates are ranked by whichever was closer lately.
"""

from __future__ import annotations

import numpy as np

from edgeinfer.engine.speculation.loops.acceptance import CANDIDATE_BYTES, bucket_count, candidate_at, logit_of
from edgeinfer.engine.speculation.loops.averages import two_after, usual
from edgeinfer.engine.speculation.loops.noise import gumbel_of
from edgeinfer.engine.speculation.loops.paths import suffix_token
from edgeinfer.engine.speculation.records import EACH, FACTS, LEAST_REST, LOGIT_RANGE, MOST_USUAL, USUAL_UNIT
from edgeinfer.jit import simd
from edgeinfer.jit.compiler import inline

ROW = 64
"""Bytes of a row of weights."""
ABSENT = np.float32(-80.0)
"""The score of what is not there."""
ERROR_RATE = 0.01
"""Weight of a new place in the mean errors."""


@inline
def rank(tree, acceptance, ranking, first, key):
    """Set the probability that each candidate from `first` on is the token of the draw with this key."""
    scores, total = simd.stack_space(128), np.float32(0.0)
    top, second = np.float32(-LOGIT_RANGE), np.float32(-LOGIT_RANGE)
    for place in range(first, tree.n_candidates):
        chance = candidate_at(tree.candidates + place * CANDIDATE_BYTES).chance
        own = logit_of(acceptance, chance)
        second = max(second, min(top, own))
        top = max(top, own)
        total += chance
    rest, weights = logit_of(acceptance, max(np.float32(1.0) - total, np.float32(LEAST_REST))), ranking.weights
    node = _weighed(weights, 1, rest, _weighed(weights, 2, top, _weighed(weights, 3, second, simd.load(weights))))
    for lane in range(0, EACH, 16):
        simd.store(scores + 4 * lane, simd.splat(ABSENT))
    others = _others(weights + ROW * (FACTS + tree.n_draft_sources + 1), rest, top, second)
    highest = others
    for place in range(first, tree.n_candidates):
        score = _score(tree, acceptance, ranking, place, key, top, node)
        simd.store_float(scores + 4 * (place - first), score)
        highest = max(highest, score)
    _share(tree, first, scores, highest, others, ranking.error <= ranking.table_error)


@inline
def note_drawn(tree, ranking, first, count, drawn):
    """Learn from a drawn token how far off the network and the table of wins were at a node."""
    error = table_error = np.float32(0.0)
    for place in range(first, first + count):
        candidate = candidate_at(tree.candidates + place * CANDIDATE_BYTES)
        won = np.float32(1.0) if candidate.token == drawn else np.float32(0.0)
        error += (candidate.ranked - won) * (candidate.ranked - won)
        table_error += (candidate.looked_up - won) * (candidate.looked_up - won)
    ranking.error += ERROR_RATE * (error - ranking.error)
    ranking.table_error += ERROR_RATE * (table_error - ranking.table_error)


@inline
def _weighed(weights, row, fact, before):
    """A fact times its row of weights, and what was before."""
    return simd.fma(simd.splat(fact), simd.load(weights + ROW * row), before)


@inline
def _score(tree, acceptance, ranking, place, key, top, node):
    """The score of a candidate. `node`: what its node adds to each unit."""
    at, weights = tree.candidates + place * CANDIDATE_BYTES, ranking.weights
    candidate = candidate_at(at)
    own, token = logit_of(acceptance, candidate.chance), candidate.token
    units = _weighed(weights, 5, own - top, _weighed(weights, 4, own, node))
    units = _weighed(weights, 6, gumbel_of(acceptance, key, token), units)
    if _is_penalised(tree, candidate):
        units = _weighed(weights, 7, np.float32(tree.penalty), units)
    earlier = suffix_token(tree, 1) if tree.n_suffix > 1 else suffix_token(tree, 0)
    units = _weighed(weights, 8, logit_of(acceptance, two_after(ranking, earlier, token)), units)
    scaled = min(np.float32(USUAL_UNIT) * usual(ranking, token), np.float32(MOST_USUAL))
    units = _weighed(weights, 9, logit_of(acceptance, scaled), units)
    for draft_source in range(tree.n_draft_sources):
        units = _weighed(weights, FACTS + draft_source, bucket_count(acceptance, at, draft_source).logit, units)
    units = simd.maximum(units, simd.splat(np.float32(0.0)))
    return simd.sum_lanes(simd.mul(units, simd.load(weights + ROW * (FACTS + tree.n_draft_sources))))


@inline
def _is_penalised(tree, candidate):
    """Whether penalties look at a candidate's token: it is among the last ones of the text and the path."""
    depth, found = simd.load_int32(tree.depths + 4 * candidate.node), False
    for back in range(min(depth, tree.n_penalised, tree.n_suffix)):  # drafted tokens, which the log has not yet
        found |= suffix_token(tree, back) == candidate.token
    for position in range(max(tree.n_log + depth - tree.n_penalised, 0), tree.n_log):
        found |= simd.load_int32(tree.log + 4 * position) == candidate.token
    return found


@inline
def _others(weights, rest, top, second):
    """The score of all tokens that were not proposed."""
    linear = simd.load_float(weights) + rest * simd.load_float(weights + 4)
    return linear + top * simd.load_float(weights + 8) + second * simd.load_float(weights + 12)


@inline
def _share(tree, first, scores, highest, others, is_better):
    """Set the probabilities of candidates with these scores. `is_better`: whether they are better than the table's."""
    total = simd.splat(np.float32(0.0))
    for lane in range(0, EACH, 16):
        at = scores + 4 * lane
        simd.store(at, simd.exp(simd.sub(simd.load(at), simd.splat(highest))))
        total = simd.add(total, simd.load(at))
    rest = simd.max_lanes(simd.exp(simd.splat(others - highest)))
    share = np.float32(1.0) / (simd.sum_lanes(total) + rest)
    for place in range(first, tree.n_candidates):
        candidate = candidate_at(tree.candidates + place * CANDIDATE_BYTES)
        candidate.ranked = simd.load_float(scores + 4 * (place - first)) * share
        if is_better:
            candidate.win = candidate.ranked
