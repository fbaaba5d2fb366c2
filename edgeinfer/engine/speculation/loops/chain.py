"""What a draft model predicts: the highest logits along the single chain of tokens that it followed.

Memory: a CHAIN record; tokens int32[n], rows int32[n, BEST] as `loops.best` packs them: row i is what may follow the
first i tokens; wins float32[n, BEST]: the probability that each token of a row is drawn, its noise known; below 0 if
that is unknown. Nothing is proposed at nodes outside the chain.
"""

from __future__ import annotations

import numpy as np

from edgeinfer.engine.speculation.loops.best import standing, token_of
from edgeinfer.engine.speculation.loops.paths import propose, tree_at
from edgeinfer.engine.speculation.records import BEST, CHAIN, FIRST_BUCKET
from edgeinfer.jit import simd

chain_at = simd.record_at(CHAIN)


def speak(state, pointer, node):
    """Propose the draft model's likeliest tokens after the node, if it was run there."""
    chain, tree = chain_at(state), tree_at(pointer)
    depth = simd.load_int32(tree.depths + 4 * node)
    if depth >= chain.n_rows:
        return
    at = node
    for back in range(depth):
        if simd.load_int32(tree.tokens + 4 * at) != simd.load_int32(chain.tokens + 4 * (depth - 1 - back)):
            return
        at = simd.load_int32(tree.parents + 4 * at)
    row = chain.rows + 4 * BEST * depth
    for rank in range(BEST):
        packed = simd.load_int32(row + 4 * rank)
        propose(tree, token_of(packed), FIRST_BUCKET + standing(packed, rank))
    wins = chain.wins + 4 * BEST * depth
    if simd.load_float(wins) >= np.float32(0.0):
        tree.foreseen, tree.foreseen_wins = row, wins
