"""The tokens with the highest logits after each bigram and trigram, from the last place where it was evaluated.

Memory: two SUCCESSORS records, one after the other; rows int32[1 << bits, WAYS, ROW]: a check of the n-gram, when it
was stored, and BEST logits as `loops.best` packs them. In a full set the oldest row is replaced. All kept tokens are
proposed, and none is drawn at random: a drafted token counts only if the model chooses it too, and the likeliest ones
are chosen most often. Source: as `loops.recycling`, by the last two and three tokens.
"""

from __future__ import annotations

import numpy as np

from edgeinfer.engine.speculation.loops.best import standing, token_of
from edgeinfer.engine.speculation.loops.paths import propose, suffix_hash, tree_at
from edgeinfer.engine.speculation.records import BEST, FIRST_BUCKET, SUCCESSORS
from edgeinfer.jit import simd
from edgeinfer.jit.compiler import inline

WAYS = 4
ROW = 2 + BEST
successors_at = simd.record_at(SUCCESSORS)
TABLE_BYTES = SUCCESSORS.itemsize


@inline
def _set(tables, mixed):
    """The set of rows that may hold an n-gram."""
    return tables.rows + 4 * ROW * WAYS * (mixed & ((1 << tables.bits) - 1))


@inline
def _check(mixed):
    """Distinguishes the n-grams of a set."""
    return (mixed >> 30) & 0x7FFFFFFF


@inline
def _speak(state, pointer, n):
    tables, tree = successors_at(state), tree_at(pointer)
    if tree.n_suffix < n:
        return
    mixed = suffix_hash(tree, n)
    row = _set(tables, mixed)
    for _way in range(WAYS):
        if simd.load_int32(row) == _check(mixed):
            for rank in range(BEST):
                packed = simd.load_int32(row + 8 + 4 * rank)
                propose(tree, token_of(packed), FIRST_BUCKET + standing(packed, rank))
            return
        row += 4 * ROW


def speak_bigram(state, pointer, node):
    """Propose the successors of the last two tokens of the node's path."""
    _speak(state, pointer, np.int64(2))


def speak_trigram(state, pointer, node):
    """Propose the successors of the last three tokens of the node's path."""
    _speak(state + TABLE_BYTES, pointer, np.int64(3))


def learn(state, pointer, node):
    """Store the node's highest logits under its bigram and its trigram."""
    _keep(state, pointer, np.int64(2))
    _keep(state + TABLE_BYTES, pointer, np.int64(3))


@inline
def _keep(state, pointer, n):
    tables, tree = successors_at(state), tree_at(pointer)
    if tree.n_suffix < n:
        return
    tables.clock += 1
    mixed = suffix_hash(tree, n)
    row = _set(tables, mixed)
    chosen, oldest = row, simd.load_int32(row + 4)
    for _way in range(WAYS):
        if simd.load_int32(row) == _check(mixed):
            chosen = row
            break
        if simd.load_int32(row + 4) < oldest:
            chosen, oldest = row, simd.load_int32(row + 4)
        row += 4 * ROW
    simd.store_int32(chosen, _check(mixed))
    simd.store_int32(chosen + 4, tables.clock)
    simd.copy_16_bytes(chosen + 8, tree.best)
    simd.copy_16_bytes(chosen + 24, tree.best + 16)
