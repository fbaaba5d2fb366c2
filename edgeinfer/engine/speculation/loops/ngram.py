"""Where the last tokens occurred before in this text, and what followed: a growing n-gram model with several lengths.

Memory: an NGRAM record. For each of LEVELS lengths: where an n-gram with each hash ended last, and for each position
where its n-gram ended before. Source: ANPD's adaptive multi-level n-gram module (arXiv 2404.08698); here the tokens of
several occurrences are ranked by how long they match, how recent they are and whether they agree with each other.
"""

from __future__ import annotations

import numpy as np

from edgeinfer.engine.speculation.loops.paths import mix, propose, suffix_hash, suffix_token, tree_at
from edgeinfer.engine.speculation.records import FIRST_BUCKET, NGRAM, SUFFIX
from edgeinfer.jit import simd
from edgeinfer.jit.compiler import inline

LEVELS = 5
LOOKED_AT = 4
"""Occurrences of each level that are examined, latest first."""
FOUND = 8
"""Most distinct tokens."""
LENGTHS = 9
RANKS = 3
ngram_at = simd.record_at(NGRAM)


@inline
def level_length(level):
    """The n-gram length of a level: 1, 2, 3, 5, 9."""
    return level + 1 if level < 3 else 2 * level - 1 if level == 3 else 9


def read(state, until, unused):
    """Index the log up to `until` tokens."""
    tables = ngram_at(state)
    for position in range(tables.n_read, until):
        mixed, back = np.int64(0), 0
        for level in range(LEVELS):
            n = level_length(level)
            while back < n and position - back >= 0:
                token = simd.load_int32(tables.log + 4 * (position - back))
                if token < 0:
                    break
                mixed = mix(mixed, token)
                back += 1
            if back < n:
                break
            head = _head(tables, level, mixed)
            simd.store_int32(_previous(tables, level, position), simd.load_int32(head))
            simd.store_int32(head, position)
    tables.n_read = max(tables.n_read, until)


def speak(state, pointer, node):
    """Propose what followed the longest n-grams that match the end of the node's path."""
    tables, tree = ngram_at(state), tree_at(pointer)
    tokens, lengths, times = simd.stack_space(64), simd.stack_space(64), simd.stack_space(64)
    found, longer = np.int64(0), SUFFIX + 1
    for down in range(LEVELS):
        level = LEVELS - 1 - down
        n = level_length(level)
        if n <= tree.n_suffix:
            position = simd.load_int32(_head(tables, level, suffix_hash(tree, n)))
            looked = 0
            while position >= 0 and looked < LOOKED_AT:
                looked += 1
                if position + 1 < tables.n_read:
                    length = _agreement(tables, tree, position)
                    token = simd.load_int32(tables.log + 4 * position + 4)
                    if n <= length and length < longer and token >= 0:
                        found = _note(tokens, lengths, times, found, token, length)
                position = simd.load_int32(_previous(tables, level, position))
            longer = n
    total = 0
    for place in range(found):
        total += simd.load_int32(times + 4 * place)
    for place in range(found):
        own = simd.load_int32(times + 4 * place)
        unity = 2 if own < total - own or (own == total - own and own > 0) else (1 if own > 1 else 0)
        bucket = (_length_class(simd.load_int32(lengths + 4 * place)) * RANKS + min(place, RANKS - 1)) * 3 + unity
        propose(tree, simd.load_int32(tokens + 4 * place), FIRST_BUCKET + bucket)


@inline
def _head(tables, level, mixed):
    return tables.heads + 4 * ((level << tables.bits) + (mixed & ((1 << tables.bits) - 1)))


@inline
def _previous(tables, level, position):
    return tables.previous + 4 * (level * tables.capacity + position)


@inline
def _agreement(tables, tree, position):
    """How many tokens up to a position match the end of the node's path, at most SUFFIX."""
    length = 0
    while length < tree.n_suffix and length <= position:
        if simd.load_int32(tables.log + 4 * (position - length)) != suffix_token(tree, length):
            break
        length += 1
    return length


@inline
def _note(tokens, lengths, times, found, token, length):
    """Count one occurrence; longer matches come first, then more recent ones. Returns the number of tokens."""
    for place in range(found):
        if simd.load_int32(tokens + 4 * place) == token:
            simd.store_int32(times + 4 * place, simd.load_int32(times + 4 * place) + 1)
            return found
    if found == FOUND:
        return found
    place = found
    while place > 0 and simd.load_int32(lengths + 4 * place - 4) < length:
        simd.store_int32(tokens + 4 * place, simd.load_int32(tokens + 4 * place - 4))
        simd.store_int32(lengths + 4 * place, simd.load_int32(lengths + 4 * place - 4))
        simd.store_int32(times + 4 * place, simd.load_int32(times + 4 * place - 4))
        place -= 1
    simd.store_int32(tokens + 4 * place, token)
    simd.store_int32(lengths + 4 * place, length)
    simd.store_int32(times + 4 * place, 1)
    return found + 1


@inline
def _length_class(length):
    """The class of a length: 0 .. LENGTHS - 1."""
    return min(length, 4) - 1 + (length >= 5) + (length >= 6) + (length >= 8) + (length >= 11) + (length >= 16)
