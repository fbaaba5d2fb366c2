"""Learning from a pass over a draft tree: what was right, and what the model would have chosen elsewhere.

Memory: a TREE record with the logits of the pass; afterwards the accepted path and the tokens chosen along it. Every
node of the tree was evaluated, so the logits of rejected nodes are kept too (Token Recycling, arXiv 2408.08696).
"""

from __future__ import annotations

import numpy as np

from edgeinfer.engine.speculation.loops.acceptance import CANDIDATE_BYTES, acceptance_at, candidate_at, count_outcome
from edgeinfer.engine.speculation.loops.averages import ranking_at
from edgeinfer.engine.speculation.loops.best import are_numbers, pack_best, token_of
from edgeinfer.engine.speculation.loops.paths import note_suffix, tree_at
from edgeinfer.engine.speculation.loops.ranking import note_drawn
from edgeinfer.engine.speculation.loops.wins import note_probability
from edgeinfer.engine.speculation.records import BEST, DRAW, NO_TOKEN, TOKEN_BITS
from edgeinfer.jit import simd
from edgeinfer.jit.compiler import inline

draw_at, DRAW_BYTES = simd.record_at(DRAW), DRAW.itemsize
double_at = simd.record_at(np.dtype([("value", "f8")]))
LEARNT_SUFFIX = 4
"""Tokens before a node that learners get."""


def look(pointer):
    """Find every node's highest logits."""
    tree = tree_at(pointer)
    for node in range(tree.n_nodes):
        logits, peaks = tree.logits + node * tree.logits_stride, tree.peaks + node * tree.peaks_stride
        row = tree.rows + 4 * BEST * node
        pack_best(logits, peaks, tree.n_vocab, row)
        first, token = simd.load_int32(row), NO_TOKEN
        if first >> TOKEN_BITS != 0 and tree.peaks != 0 and are_numbers(peaks, tree.n_vocab):
            token = token_of(first)
        simd.store_int32(tree.likeliest + 4 * node, token)
    return 0


def learn(pointer):
    """Count which candidates were right, and pass every node's highest logits, found by `look`, to the learners."""
    tree = tree_at(pointer)
    _tally(tree)
    for step in range(tree.n_path):
        _count(tree, step)
    for node in range(tree.n_nodes):
        note_suffix(tree, node, np.int64(LEARNT_SUFFIX))
        tree.best = tree.rows + 4 * BEST * node
        for learner in range(tree.n_learners):
            entry = tree.learners + 16 * learner
            simd.call_kernel(simd.load_int64(entry), simd.load_int64(entry + 8), pointer, node)
    return 0


@inline
def _count(tree, step):
    """Count the outcome of every candidate at a node of the path."""
    node, chosen = simd.load_int32(tree.path + 4 * step), simd.load_int32(tree.chosen + 4 * step)
    acceptance, draw = acceptance_at(tree.acceptance), draw_at(tree.draws + DRAW_BYTES * step)
    is_drawn = tree.n_drawn >= 0 and draw.n > 0
    first = simd.load_int32(tree.offers + 8 * node)
    for place in range(first, first + simd.load_int32(tree.offers + 8 * node + 4)):
        at = tree.candidates + place * CANDIDATE_BYTES
        candidate = candidate_at(at)
        if is_drawn:
            outcome = _probability(draw, candidate.token)
            note_probability(acceptance, candidate.chance, outcome)
        else:
            outcome = np.float32(1.0) if candidate.token == chosen else np.float32(0.0)
        count_outcome(acceptance, at, tree.n_draft_sources, outcome)
    if is_drawn and acceptance.ranking != 0:
        note_drawn(tree, ranking_at(acceptance.ranking), first, simd.load_int32(tree.offers + 8 * node + 4), chosen)


@inline
def _probability(draw, token):
    """The probability that a token had in a draw."""
    low, high = 0, draw.n
    while low < high:
        middle = (low + high) >> 1
        if simd.load_int64(draw.tokens + 8 * middle) < token:
            low = middle + 1
        else:
            high = middle
    if low == draw.n or simd.load_int64(draw.tokens + 8 * low) != token:
        return np.float32(0.0)
    return np.float32(double_at(draw.weights + 8 * low).value / draw.total)


@inline
def _tally(tree):
    """Count nodes by source: all of them, and those of the path."""
    for node in range(1, tree.n_nodes):
        _add_one(tree.tally + 16 * simd.load_int32(tree.sources + 4 * node))
    for step in range(1, tree.n_path):
        _add_one(tree.tally + 16 * simd.load_int32(tree.sources + 4 * simd.load_int32(tree.path + 4 * step)) + 8)


@inline
def _add_one(at):
    simd.store_int64(at, simd.load_int64(at) + 1)


def pack_rows(logits, stride, peaks, peaks_stride, count, n_vocab, out):
    """Pack the highest logits of rows float32[count, stride / 4] into int32[count, BEST]. Returns the number of rows.

    `peaks`: float32[count, peaks_stride / 4], or 0.
    """
    for row in range(count):
        pack_best(logits + row * stride, peaks + row * peaks_stride, n_vocab, out + 4 * BEST * row)
    return count
