"""Growing the trees of a pass, the likeliest token of all texts first, for as long as another token pays.

Memory: a PASS record, with a TREE record for each text. The root of a tree is the last token of its log. To expand a
node, every draft source is asked for tokens that may follow it. A heap holds all candidates of a tree by the
probability of their whole path, and the likeliest of all trees is taken, so the first k nodes are the best k nodes of
the pass for every k. In a chain each node is the likeliest one after its predecessor. Growth ends where the expected
tokens per second of all texts together are highest. Source of the rule: DESIGN §7; of best-first trees by path
probability: OPT-Tree (arXiv 2406.17276); of one order for all texts of a batch: TETRIS (arXiv 2502.15197).
"""

from __future__ import annotations

import numpy as np

from edgeinfer.engine.speculation.loops.acceptance import (
    CANDIDATE_BYTES,
    acceptance_at,
    candidate_at,
    chance_of,
    estimate,
    logit_of,
    strongest,
)
from edgeinfer.engine.speculation.loops.averages import ranking_at
from edgeinfer.engine.speculation.loops.best import token_of
from edgeinfer.engine.speculation.loops.noise import draw_key, gumbel_of
from edgeinfer.engine.speculation.loops.paths import note_suffix, tree_at
from edgeinfer.engine.speculation.loops.ranking import rank
from edgeinfer.engine.speculation.loops.wins import win_chance
from edgeinfer.engine.speculation.records import BEST, BUCKETS_OFFSET, EACH, MOST, OTHERS, PASS, SILENT, SUFFIX
from edgeinfer.jit import simd
from edgeinfer.jit.compiler import inline

pass_at = simd.record_at(PASS)
LEAST_REACH = np.float32(0.004)
"""Paths less likely than this are not followed."""
MOST_OFFERED = np.float32(0.98)
"""Upper limit for the summed probability of all candidates at a node."""


def grow(pointer):
    """Let readers read the logs, and grow the trees of a pass from their roots. Returns the number of all nodes."""
    shared = pass_at(pointer)
    for number in range(shared.n_trees):  # all read first: what one text has, another may draft from
        tree = tree_at(_tree(shared, number))
        for reader in range(tree.n_readers):
            entry = tree.readers + 16 * reader
            simd.call_kernel(simd.load_int64(entry), simd.load_int64(entry + 8), tree.n_log, 0)
    for number in range(shared.n_trees):
        _start(tree_at(_tree(shared, number)))
        _expand(tree_at(_tree(shared, number)), _tree(shared, number), np.int64(0))
    n_nodes = shared.n_trees
    best_size, expected = n_nodes, shared.beside_expected + np.float64(n_nodes)
    best_rate = expected / _cost(shared, n_nodes)
    while n_nodes < shared.most:
        number = _likeliest(shared)
        if number < 0:
            break
        reach = simd.load_float(tree_at(_tree(shared, number)).heap)
        if shared.fixed == 0 and not _may_pay(shared, n_nodes, expected, np.float64(reach), best_rate):
            break
        _grow_one(tree_at(_tree(shared, number)), _tree(shared, number), reach)
        n_nodes += 1
        expected += np.float64(reach)
        rate = expected / _cost(shared, n_nodes)
        if rate > best_rate or shared.fixed != 0:
            best_size, best_rate = n_nodes, rate
            _keep(shared)
    for number in range(shared.n_trees):
        _cut(tree_at(_tree(shared, number)))
    return best_size


@inline
def _tree(shared, number):
    """The address of a tree of the pass."""
    return simd.load_int64(shared.trees + 8 * number)


@inline
def _cost(shared, n_tokens):
    """The cost of the pass with `n_tokens` tokens of these texts."""
    return np.float64(simd.load_float(shared.costs + 4 * min(shared.beside + n_tokens, MOST)))


@inline
def _may_pay(shared, n_nodes, expected, reach, best_rate):
    """Whether any larger pass could be better if all further nodes were as likely as the next one."""
    for size in range(n_nodes + 1, shared.most + 1):
        if expected + (size - n_nodes) * reach > best_rate * _cost(shared, size):
            return True
    return False


@inline
def _likeliest(shared):
    """The tree with the likeliest candidate of all that may grow; -1 if none may.

    A tree that grows beyond its root takes pages, of which there may be too few for all trees.
    """
    n_pages = np.int64(0)
    for number in range(shared.n_trees):
        if tree_at(_tree(shared, number)).n_nodes > 1:
            n_pages += tree_at(_tree(shared, number)).n_pages
    found, most_likely = np.int64(-1), LEAST_REACH
    for number in range(shared.n_trees):
        tree = tree_at(_tree(shared, number))
        has_pages = tree.n_nodes > 1 or n_pages + tree.n_pages <= shared.most_pages
        if has_pages and tree.n_nodes < tree.most and tree.n_heap > 0:
            reach = simd.load_float(tree.heap)
            if reach >= LEAST_REACH and (found < 0 or reach > most_likely):
                found, most_likely = np.int64(number), reach
    return found


@inline
def _grow_one(tree, pointer, reach):
    """Make a tree's likeliest candidate its next node."""
    node = tree.n_nodes
    _add(tree, node, reach, _pop(tree))
    if tree.chain != 0:
        tree.n_heap = 0  # the others would be siblings
    if simd.load_int32(tree.depths + 4 * node) < tree.deepest:
        _expand(tree, pointer, node)


@inline
def _keep(shared):
    """Note that the trees as they are make the best pass so far."""
    for number in range(shared.n_trees):
        tree = tree_at(_tree(shared, number))
        tree.n_kept = tree.n_nodes


@inline
def _cut(tree):
    """Cut a tree to what was kept of it."""
    tree.n_nodes, tree.expected = tree.n_kept, 0.0
    for node in range(tree.n_nodes):
        tree.expected += np.float64(simd.load_float(tree.reaches + 4 * node))


@inline
def _start(tree):
    tree.n_nodes, tree.n_kept, tree.n_candidates, tree.n_heap = 1, 1, 0, 0
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
    """Collect what the draft sources propose at a node and put it on the heap."""
    first, tree.spoken, tree.foreseen = tree.n_candidates, 0, 0
    note_suffix(tree, node, np.int64(SUFFIX))
    for draft_source in range(tree.n_draft_sources):
        entry = tree.draft_sources + 24 * draft_source
        tree.n_proposals = 0
        simd.call_kernel(simd.load_int64(entry), simd.load_int64(entry + 8), pointer, node)
        _merge(tree, node, first, draft_source, simd.load_int64(entry + 16))
    simd.store_int32(tree.offers + 8 * node, first)
    simd.store_int32(tree.offers + 8 * node + 4, tree.n_candidates - first)
    acceptance, total = acceptance_at(tree.acceptance), np.float32(0.0)
    for place in range(first, tree.n_candidates):
        at = tree.candidates + place * CANDIDATE_BYTES
        candidate = candidate_at(at)
        candidate.source = strongest(acceptance, at, tree.n_draft_sources, candidate.source)
        candidate.chance = estimate(acceptance, at, tree.n_draft_sources)
        total += candidate.chance
    scale = _scale(MOST_OFFERED, total)
    for place in range(first, tree.n_candidates):
        candidate_at(tree.candidates + place * CANDIDATE_BYTES).chance *= scale
    if tree.n_drawn < 0:
        for place in range(first, tree.n_candidates):
            chance = candidate_at(tree.candidates + place * CANDIDATE_BYTES).chance
            _push(tree, simd.load_float(tree.reaches + 4 * node) * chance, place)
    else:
        _push_drawn(tree, node, first)


@inline
def _push_drawn(tree, node, first):
    """Put a node's candidates on the heap, by the probability that they are drawn with the noise that they have.

    Of tokens that a draft model foresees something of, the two estimates are as good as each other: their mean is taken
    (of their logits). The other tokens share the rest.
    """
    acceptance, reach = acceptance_at(tree.acceptance), simd.load_float(tree.reaches + 4 * node)
    key = draw_key(tree.noise, tree.n_drawn + simd.load_int32(tree.depths + 4 * node))
    foreseen, total = np.float32(0.0), np.float32(0.0)
    for place in range(first, tree.n_candidates):
        candidate = candidate_at(tree.candidates + place * CANDIDATE_BYTES)
        candidate.win = win_chance(acceptance, candidate.chance, gumbel_of(acceptance, key, candidate.token))
        known = _foreseen(tree, candidate.token)
        if known >= np.float32(0.0):
            logits = logit_of(acceptance, candidate.win) + logit_of(acceptance, known)
            candidate.win = chance_of(acceptance, np.float32(0.5) * logits)
            foreseen += candidate.win
        else:
            total += candidate.win
    scale, rest = _scale(MOST_OFFERED, foreseen), _scale(max(MOST_OFFERED - foreseen, np.float32(0.0)), total)
    for place in range(first, tree.n_candidates):
        candidate = candidate_at(tree.candidates + place * CANDIDATE_BYTES)
        candidate.win *= scale if _foreseen(tree, candidate.token) >= np.float32(0.0) else rest
        candidate.looked_up = candidate.win
    if acceptance.ranking != 0:
        rank(tree, acceptance, ranking_at(acceptance.ranking), first, key)
    for place in range(first, tree.n_candidates):
        _push(tree, reach * candidate_at(tree.candidates + place * CANDIDATE_BYTES).win, place)


@inline
def _foreseen(tree, token):
    """The probability that a token of the current node is drawn as a draft model foresees it; -1 if it does not."""
    if tree.foreseen != 0:
        for rank in range(BEST):
            if token_of(simd.load_int32(tree.foreseen + 4 * rank)) == token:
                return simd.load_float(tree.foreseen_wins + 4 * rank)
    return np.float32(-1.0)


@inline
def _scale(most, total):
    """What probabilities with this sum are multiplied by, to be at most `most`: only one of them can come true."""
    return most / total if total > most else np.float32(1.0)


@inline
def _merge(tree, node, first, draft_source, buckets):
    """Record the proposals of one draft source: update the buckets of all candidates at the node, and add new ones.

    `buckets`: index of the draft source's first bucket in the counts. A candidate's `source` collects a bit for each
    draft source that proposes it.
    """
    bucket = SILENT if tree.n_proposals == 0 else OTHERS
    if tree.n_proposals > 0:
        tree.spoken |= 1 << draft_source
    for place in range(first, tree.n_candidates):
        simd.store_int32(_bucket(tree, place, draft_source), buckets + bucket)
    for index in range(tree.n_proposals):
        token = simd.load_int32(tree.proposals + 8 * index)
        bucket = buckets + simd.load_int32(tree.proposals + 8 * index + 4)
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
            _new_candidate(tree, place, node, token, draft_source)
        candidate = candidate_at(tree.candidates + place * CANDIDATE_BYTES)
        if (candidate.source >> draft_source) & 1 == 0:
            candidate.source |= 1 << draft_source
            simd.store_int32(_bucket(tree, place, draft_source), bucket)


@inline
def _bucket(tree, place, draft_source):
    """The address at which a candidate's bucket for a draft source is stored."""
    return tree.candidates + place * CANDIDATE_BYTES + BUCKETS_OFFSET + 4 * draft_source


@inline
def _new_candidate(tree, place, node, token, draft_source):
    candidate = candidate_at(tree.candidates + place * CANDIDATE_BYTES)
    candidate.token = token
    candidate.node = node
    candidate.source = 0
    for earlier in range(draft_source):
        buckets = simd.load_int64(tree.draft_sources + 24 * earlier + 16)
        bucket = OTHERS if (tree.spoken >> earlier) & 1 else SILENT
        simd.store_int32(_bucket(tree, place, earlier), buckets + bucket)
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
