"""Growing a tree of drafts, the likeliest token first, for as long as another one pays.

Memory: a TREE record. The root is the last token of the log. A node is expanded by asking every voice for tokens that
may follow it; a heap holds all candidates by the probability of their whole path, so that the first k nodes are the
best tree of k for every k. Of a chain each node is the likeliest after the one before. The tree ends where expected
tokens per second are highest. Source of the rule: DESIGN §7; of best-first trees by path probability: OPT-Tree
(arXiv 2406.17276).
"""

from __future__ import annotations

import numpy as np

from edgeinfer.backends.cpu import simd
from edgeinfer.backends.cpu.jit import inline
from edgeinfer.engine.speculation.loops.chances import (
    CANDIDATE_BYTES,
    candidate_at,
    chances_at,
    estimate,
    strongest,
)
from edgeinfer.engine.speculation.loops.paths import note_suffix, tree_at
from edgeinfer.engine.speculation.records import CLAIMS_OFFSET, EACH, MOST, OTHERS, SILENT, SUFFIX

LEAST_REACH = np.float32(0.004)
"""Paths that are less likely than this are not followed."""
MOST_OFFERED = np.float32(0.98)
"""All candidates at a node together are at most this likely."""


def grow(pointer):
    """Have the log read and fill the tree from its root; the number of its nodes."""
    tree = tree_at(pointer)
    _start(tree)
    for reader in range(tree.n_readers):
        entry = tree.readers + 16 * reader
        simd.call_kernel(simd.load_int64(entry), simd.load_int64(entry + 8), tree.n_log, 0)
    _expand(tree, pointer, np.int64(0))
    expected, best_size = 1.0, 1
    best_rate, best_expected = _rate(tree, expected, 1), expected
    while tree.n_nodes < tree.most and tree.n_heap > 0:
        reach = simd.load_float(tree.heap)
        if reach < LEAST_REACH or (tree.fixed == 0 and not _may_pay(tree, expected, np.float64(reach), best_rate)):
            break
        node = tree.n_nodes
        _add(tree, node, reach, _pop(tree))
        if tree.chain != 0:
            tree.n_heap = 0  # the others would be siblings
        expected += np.float64(reach)
        rate = _rate(tree, expected, node + 1)
        if rate > best_rate or tree.fixed != 0:
            best_size, best_rate, best_expected = node + 1, rate, expected
        if simd.load_int32(tree.depths + 4 * node) < tree.deepest:
            _expand(tree, pointer, node)
    tree.n_nodes = best_size
    tree.expected = best_expected
    return best_size


@inline
def _cost(tree, n_tokens):
    """What the pass costs with so many tokens of this text."""
    return np.float64(simd.load_float(tree.costs + 4 * (tree.beside + n_tokens)))


@inline
def _rate(tree, expected, n_tokens):
    """Tokens of all texts in the pass by what it costs."""
    return (tree.beside_expected + expected) / _cost(tree, n_tokens)


@inline
def _may_pay(tree, expected, reach, best_rate):
    """Whether any larger tree could be better, if all nodes to come were as likely as the next one."""
    for size in range(tree.n_nodes + 1, tree.most + 1):
        more = expected + (size - tree.n_nodes) * reach
        if tree.beside_expected + more > best_rate * _cost(tree, size):
            return True
    return False


@inline
def _start(tree):
    tree.n_nodes, tree.n_candidates, tree.n_heap = 1, 0, 0
    simd.store_int32(tree.tokens, simd.load_int32(tree.log + 4 * (tree.n_log - 1)))
    simd.store_int32(tree.parents, -1)
    simd.store_int32(tree.depths, 0)
    simd.store_int32(tree.sources, -1)
    simd.store_float(tree.reaches, np.float32(1.0))


@inline
def _add(tree, node, reach, place):
    """Make a candidate the next node."""
    candidate = candidate_at(tree.candidates + place * CANDIDATE_BYTES)
    simd.store_int32(tree.tokens + 4 * node, candidate.token)
    simd.store_int32(tree.parents + 4 * node, candidate.node)
    simd.store_int32(tree.depths + 4 * node, simd.load_int32(tree.depths + 4 * candidate.node) + 1)
    simd.store_int32(tree.sources + 4 * node, candidate.source)
    simd.store_float(tree.reaches + 4 * node, reach)
    simd.store_int32(tree.offers + 8 * node + 4, 0)
    tree.n_nodes = node + 1


@inline
def _expand(tree, pointer, node):
    """Collect what the voices propose at a node and put it on the heap."""
    first, tree.spoken = tree.n_candidates, 0
    note_suffix(tree, node, np.int64(SUFFIX))
    for voice in range(tree.n_voices):
        entry = tree.voices + 24 * voice
        tree.n_proposals = 0
        simd.call_kernel(simd.load_int64(entry), simd.load_int64(entry + 8), pointer, node)
        _merge(tree, node, first, voice, simd.load_int64(entry + 16))
    simd.store_int32(tree.offers + 8 * node, first)
    simd.store_int32(tree.offers + 8 * node + 4, tree.n_candidates - first)
    chances, total = chances_at(tree.chances), np.float32(0.0)
    for place in range(first, tree.n_candidates):
        at = tree.candidates + place * CANDIDATE_BYTES
        candidate = candidate_at(at)
        candidate.source = strongest(chances, at, tree.n_voices, candidate.source)
        candidate.chance = estimate(chances, at, tree.n_voices)
        total += candidate.chance
    reach, scale = simd.load_float(tree.reaches + 4 * node), np.float32(1.0)
    if total > MOST_OFFERED:
        scale = MOST_OFFERED / total
    for place in range(first, tree.n_candidates):
        candidate = candidate_at(tree.candidates + place * CANDIDATE_BYTES)
        candidate.chance *= scale
        _push(tree, reach * candidate.chance, place)


@inline
def _merge(tree, node, first, voice, claims):
    """Note what one voice says: about its own proposals, about those of the others, and on theirs about all of them.

    `claims`: where the voice's claims begin in the counts. A candidate's `source` collects a bit for each voice.
    """
    claim = SILENT if tree.n_proposals == 0 else OTHERS
    if tree.n_proposals > 0:
        tree.spoken |= 1 << voice
    for place in range(first, tree.n_candidates):
        simd.store_int32(_claim(tree, place, voice), claims + claim)
    for index in range(tree.n_proposals):
        token = simd.load_int32(tree.proposals + 8 * index)
        claim = claims + simd.load_int32(tree.proposals + 8 * index + 4)
        if token < 0 or token >= tree.n_vocab:
            continue
        place = first
        while place < tree.n_candidates:
            if candidate_at(tree.candidates + place * CANDIDATE_BYTES).token == token:
                break
            place += 1
        if place == tree.n_candidates:
            if place - first == EACH or place == MOST * EACH:
                continue
            _new_candidate(tree, place, node, token, voice)
        candidate = candidate_at(tree.candidates + place * CANDIDATE_BYTES)
        if (candidate.source >> voice) & 1 == 0:
            candidate.source |= 1 << voice
            simd.store_int32(_claim(tree, place, voice), claim)


@inline
def _claim(tree, place, voice):
    """Where a voice's claim about a candidate is kept."""
    return tree.candidates + place * CANDIDATE_BYTES + CLAIMS_OFFSET + 4 * voice


@inline
def _new_candidate(tree, place, node, token, voice):
    candidate = candidate_at(tree.candidates + place * CANDIDATE_BYTES)
    candidate.token = token
    candidate.node = node
    candidate.source = 0
    for earlier in range(voice):
        claims = simd.load_int64(tree.voices + 24 * earlier + 16)
        claim = OTHERS if (tree.spoken >> earlier) & 1 else SILENT
        simd.store_int32(_claim(tree, place, earlier), claims + claim)
    tree.n_candidates = place + 1


@inline
def _push(tree, reach, place):
    """Put a candidate on the heap."""
    at = tree.n_heap
    tree.n_heap = at + 1
    while at > 0:
        above = (at - 1) >> 1
        if simd.load_float(tree.heap + 8 * above) >= reach:
            break
        simd.store_int64(tree.heap + 8 * at, simd.load_int64(tree.heap + 8 * above))
        at = above
    simd.store_float(tree.heap + 8 * at, reach)
    simd.store_int32(tree.heap + 8 * at + 4, place)


@inline
def _pop(tree):
    """Take the likeliest candidate off the heap."""
    found = simd.load_int32(tree.heap + 4)
    tree.n_heap -= 1
    last = simd.load_int64(tree.heap + 8 * tree.n_heap)
    reach = simd.load_float(tree.heap + 8 * tree.n_heap)
    at = 0
    while True:
        below = 2 * at + 1
        if below >= tree.n_heap:
            break
        if below + 1 < tree.n_heap and (
            simd.load_float(tree.heap + 8 * below + 8) > simd.load_float(tree.heap + 8 * below)
        ):
            below += 1
        if simd.load_float(tree.heap + 8 * below) <= reach:
            break
        simd.store_int64(tree.heap + 8 * at, simd.load_int64(tree.heap + 8 * below))
        at = below
    simd.store_int64(tree.heap + 8 * at, last)
    return found
