"""Reading and writing a draft tree from compiled code.

Memory: a TREE record. Nodes are numbered in the order in which they were added, so parents come first.
"""

from __future__ import annotations

import numpy as np

from edgeinfer.engine.speculation.records import PROPOSED, TREE
from edgeinfer.jit import simd
from edgeinfer.jit.compiler import inline

tree_at = simd.record_at(TREE)


@inline
def note_suffix(tree, node, wanted):
    """Write the last tokens of the text that ends with a node into `suffix`, up to `wanted` of them."""
    count, at = 0, node
    while at > 0 and count < wanted:
        simd.store_int32(tree.suffix + 4 * count, simd.load_int32(tree.tokens + 4 * at))
        at = simd.load_int32(tree.parents + 4 * at)
        count += 1
    position = tree.n_log - 1
    while count < wanted and position >= 0 and at == 0:
        token = simd.load_int32(tree.log + 4 * position)
        if token < 0:
            break
        simd.store_int32(tree.suffix + 4 * count, token)
        position -= 1
        count += 1
    tree.n_suffix = count


@inline
def suffix_token(tree, back):
    """The token `back` places before the last one."""
    return simd.load_int32(tree.suffix + 4 * back)


@inline
def suffix_hash(tree, n):
    """A hash of the last n tokens, in order."""
    mixed = np.int64(0)
    for back in range(n):
        mixed = mix(mixed, suffix_token(tree, back))
    return mixed


@inline
def mix(mixed, token):
    """Add a token to a hash: 0 .. 2^62 - 1."""
    product = (np.uint64(mixed) ^ np.uint64(token + 1)) * np.uint64(
        0x9E3779B97F4A7C15
    )  # unsigned, because the product wraps around
    return np.int64((product ^ (product >> np.uint64(29))) & np.uint64(0x3FFFFFFFFFFFFFFF))


@inline
def propose(tree, token, bucket):
    """Propose a token at the current node for a draft source; tokens beyond PROPOSED are dropped."""
    if tree.n_proposals < PROPOSED:
        at = tree.proposals + 8 * tree.n_proposals
        simd.store_int32(at, token)
        simd.store_int32(at + 4, bucket)
        tree.n_proposals += 1
