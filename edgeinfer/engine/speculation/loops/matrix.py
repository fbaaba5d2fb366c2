"""A trigram matrix: how often tokens followed pairs of tokens, in texts and in the model's own choices in drafts.

Memory: a MATRIX record; rows int32[1 << bits, WAYS, 2 + 2 * BEST]: a check of the pair, when it was used, then tokens
and how often each followed. The most frequent tokens are proposed. Source of the matrix: ADED (arXiv 2407.12021); its
search, which also tries what is rare, is left out.
"""

from __future__ import annotations

import numpy as np

from edgeinfer.engine.speculation.loops.best import token_of
from edgeinfer.engine.speculation.loops.paths import mix, propose, suffix_hash, tree_at
from edgeinfer.engine.speculation.records import BEST, FIRST_BUCKET, MATRIX
from edgeinfer.jit import simd
from edgeinfer.jit.compiler import inline

WAYS = 2
ROW = 2 + 2 * BEST
COUNTS_AT = 4 * (2 + BEST)
SPOKEN = 5
SHARES, SIZES = 5, 4
MOST_SEEN = 4096
matrix_at = simd.record_at(MATRIX)


@inline
def _find(matrix, mixed, makes):
    """The row of a pair; 0 if there is none. With `makes`, replaces the least recently used row of its set instead."""
    check = (mixed >> 30) & 0x7FFFFFFF
    row = matrix.rows + 4 * ROW * WAYS * (mixed & ((1 << matrix.bits) - 1))
    oldest = row
    for way in range(WAYS):
        at = row + 4 * ROW * way
        if simd.load_int32(at) == check:
            return at
        if simd.load_int32(at + 4) < simd.load_int32(oldest + 4):
            oldest = at
    if not makes:
        return 0
    simd.store_int32(oldest, check)
    for place in range(BEST):
        simd.store_int32(oldest + 8 + 4 * place, -1)
        simd.store_int32(oldest + COUNTS_AT + 4 * place, 0)
    return oldest


@inline
def _count(matrix, mixed, token):
    """Count a token after a pair: it moves up past rarer ones; a new token takes the last place."""
    row = _find(matrix, mixed, True)
    matrix.clock += 1
    simd.store_int32(row + 4, matrix.clock)
    place = 0
    while place < BEST - 1 and simd.load_int32(row + 8 + 4 * place) not in (token, -1):
        place += 1
    times = simd.load_int32(row + COUNTS_AT + 4 * place) + 1
    if simd.load_int32(row + 8 + 4 * place) != token:
        times = 1
    while place > 0 and simd.load_int32(row + COUNTS_AT + 4 * place - 4) <= times:  # of equals, the latest first
        simd.store_int32(row + 8 + 4 * place, simd.load_int32(row + 8 + 4 * place - 4))
        simd.store_int32(row + COUNTS_AT + 4 * place, simd.load_int32(row + COUNTS_AT + 4 * place - 4))
        place -= 1
    simd.store_int32(row + 8 + 4 * place, token)
    simd.store_int32(row + COUNTS_AT + 4 * place, min(times, MOST_SEEN))


def read(state, until, unused):
    """Count the trigrams of the log up to `until` tokens."""
    matrix = matrix_at(state)
    for position in range(max(matrix.n_read, 2), until):
        third = simd.load_int32(matrix.log + 4 * position)
        second = simd.load_int32(matrix.log + 4 * position - 4)
        first = simd.load_int32(matrix.log + 4 * position - 8)
        if third >= 0 and second >= 0 and first >= 0:
            _count(matrix, mix(mix(np.int64(0), second), first), third)
    matrix.n_read = until


def learn(state, pointer, node):
    """Count what the model would have chosen after a node."""
    tree = tree_at(pointer)
    if tree.n_suffix >= 2:
        _count(matrix_at(state), suffix_hash(tree, 2), token_of(simd.load_int32(tree.best)))


def speak(state, pointer, node):
    """Propose what followed the last two tokens, most frequent first."""
    matrix, tree = matrix_at(state), tree_at(pointer)
    if tree.n_suffix < 2:
        return
    row = _find(matrix, suffix_hash(tree, 2), False)
    if row == 0:
        return
    total = 0
    for place in range(BEST):
        total += simd.load_int32(row + COUNTS_AT + 4 * place)
    for place in range(SPOKEN):
        token, times = simd.load_int32(row + 8 + 4 * place), simd.load_int32(row + COUNTS_AT + 4 * place)
        if token < 0:
            break
        share = np.int64(8 * times // max(total, 1))
        kind = (share >= 1) + (share >= 3) + (share >= 5) + (share >= 7)
        size = (total >= 2) + (total >= 5) + (total >= 15)
        propose(tree, token, FIRST_BUCKET + (min(place, 2) * SHARES + kind) * SIZES + size)
