"""The tokens with the highest logits after each token, from the last place where it was evaluated.

Memory: a SUCCESSORS record; rows int32[V, BEST] as `loops.best` packs them; the first entry is NO_TOKEN if nothing is
known. Source: the adjacency matrix of Token Recycling (arXiv 2408.08696).
"""

from __future__ import annotations

from edgeinfer.engine.speculation.loops.best import standing, token_of
from edgeinfer.engine.speculation.loops.paths import propose, suffix_token, tree_at
from edgeinfer.engine.speculation.records import BEST, FIRST_BUCKET, SUCCESSORS
from edgeinfer.jit import simd

successors_at = simd.record_at(SUCCESSORS)


def speak(state, pointer, node):
    """Propose the successors of the node's token."""
    tree = tree_at(pointer)
    row = successors_at(state).rows + 4 * BEST * suffix_token(tree, 0)
    if simd.load_int32(row) >= 0:
        for rank in range(BEST):
            packed = simd.load_int32(row + 4 * rank)
            propose(tree, token_of(packed), FIRST_BUCKET + standing(packed, rank))


def learn(state, pointer, node):
    """Store the node's highest logits."""
    tree = tree_at(pointer)
    row = successors_at(state).rows + 4 * BEST * suffix_token(tree, 0)
    simd.copy_16_bytes(row, tree.best)
    simd.copy_16_bytes(row + 16, tree.best + 16)
