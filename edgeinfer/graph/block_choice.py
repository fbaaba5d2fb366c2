"""Which chunks the blocks of a prompt attend to where a model is opened with a budget (`--approx prefill=N`).

A chunk is PAGE positions; a block is the tokens of a prompt at the positions of one chunk, all in one pass. A block
attends to its own chunk, to the one before, to the first one, and to those of the others that get most attention from a
few of its queries, for each KV head: the vertical lines of MInference (Jiang et al., arXiv 2407.02490), by chunks, and
estimated as in SampleAttention (Zhu et al., arXiv 2406.15486). So the choice depends on the block's queries and the
keys before it, and not on how a prompt is cut into passes of whole blocks. In: scores. Out: chunks. Tokens of a prompt
that are not in a whole block, and tokens of answers, attend to everything.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgeinfer.graph.step import PAGE, Floats

SAMPLED = 4
"""Queries of a block that choose: the last of each equal part of it."""
SAMPLED_APART = PAGE // SAMPLED
ALWAYS = 3
"""Chunks that a block attends to in any case: its own, the one before, and the first one."""
LEAST_BUDGET = (ALWAYS + 1) * PAGE
"""The smallest budget in positions."""


def sampled_tokens() -> NDArray[np.int64]:
    """The tokens of a block whose queries choose."""
    return np.arange(SAMPLED_APART - 1, PAGE, SAMPLED_APART)


def n_chosen(budget: int) -> int:
    """Chunks that a block attends to, if there are as many."""
    return -(-budget // PAGE)


def chosen_chunks(scores: Floats, budget: int) -> NDArray[np.bool_]:
    """The chunks that a block attends to, bool[n + 1], of the n before it and its own.

    `scores`: those of the sampled queries of a KV head's group over all positions before the block, float32[R, n *
    PAGE]. `budget`: positions.
    """
    n_before, n_most = scores.shape[1] // PAGE, n_chosen(budget)
    chosen = np.ones(n_before + 1, bool)
    if n_before + 1 <= n_most:
        return chosen
    shares = np.exp(scores - scores.max(axis=1, keepdims=True))
    shares /= shares.sum(axis=1, keepdims=True)
    attention = shares.reshape(len(shares), n_before, PAGE).sum(axis=(0, 2))
    chosen[1 : n_before - 1] = False
    others = np.arange(n_before - 2, 0, -1)  # the later of two alike comes first
    best = others[np.argsort(-attention[others], kind="stable")]
    chosen[best[: n_most - ALWAYS]] = True
    return chosen
