"""Attention within a budget: which chunks of cached positions a token sees, as a rule and as its meaning in NumPy.

Positions are cut into chunks of PAGE. A token with a budget sees the first chunk, its recent ones (its own and some
before it), and of the others those that score best, separately for each KV head, until the budget is filled. The score
is what a query can find in a chunk, from the smallest and the largest number that its keys have in each column (Quest,
arXiv 2406.10774), both drawn towards their middle: the bound itself favours chunks of scattered keys. So what a token
sees depends on its query and the cached keys alone: it is the same alone, in a batch, or as a node of a draft tree. In:
batches, queries, keys. Out: chunk numbers. Knows no device.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeinfer.graph.step import PAGE, Batch, Floats, Int32s

RECENT_SHARE = 4
"""The recent chunks before a token's own take one part in four of its budget, but at least one chunk."""
TURN_SHARE = 2
"""They reach back to the start of the token's turn where that takes at most one part in two."""
NEAR_EDGE, FAR_EDGE = 0.625, 0.375
"""Weights of an edge and of the opposite one: a quarter of the way from their middle to the edge is left.

Of the mass of attention after 4,096 tokens (30 layers of SmolLM2, 24 queries) this finds 94.8, 84.0 and 76.7 % with 50,
20 and 10 % of the positions; the bound itself 94.7, 82.4 and 75.0 %, the latest positions 91.2, 83.3 and 75.3 %, mean
keys 92.0, 83.1 and 76.3 %.
"""
MOST_HALF = np.float32(65504.0)


def recent_and_best(batch: Batch, starts: Int32s) -> tuple[Int32s, Int32s]:
    """The first recent chunk of each token, int32[T], and how many chunks between it and the first one it may choose.

    All chunks are recent, from 0 on, for tokens without a budget and where the budget covers everything. `starts`: the
    position from which on a token's ancestors are in the same pass (`Step.starts`): it sees all of those.
    """
    n_tokens, turns = len(batch.tokens), batch.turn_starts
    if batch.budgets is None:
        return np.zeros(n_tokens, np.int32), np.zeros(n_tokens, np.int32)
    stated = batch.positions.tolist(), starts.tolist(), batch.budgets.tolist()
    own = map(_seen, *stated, [0] * n_tokens if turns is None else turns.tolist())
    first, n_best = np.array(list(own), np.int32).T
    return first, n_best


def most_together(start: int, budget: int) -> int:
    """The most tokens from a position on that a pass may have for each to see what it would see alone."""
    return (start // PAGE + _before(budget) + 1) * PAGE - start


def _before(budget: int) -> int:
    """How many chunks before a token's own are recent at least."""
    return max(1, budget // (RECENT_SHARE * PAGE))


def _seen(position: int, start: int, budget: int, turn_start: int) -> tuple[int, int]:
    """The first recent chunk of a token, and how many others it may choose."""
    if budget <= 0:
        return 0, 0
    own, most, before = position // PAGE, -(-budget // PAGE), _before(budget)
    in_turn = own - turn_start // PAGE
    if turn_start > 0 and before < in_turn < most // TURN_SHARE:
        before = in_turn
    first = min(own - before, start // PAGE)
    n_best = max(0, most - 2 - (own - first))
    return (0, 0) if first - 1 <= n_best else (first, n_best)


def summaries(keys: Floats) -> tuple[Floats, Floats]:
    """The drawn edges of each column of chunks of keys [chunks, PAGE, G, K], lower and higher, as float16 has them."""
    least, most = (np.clip(edge, -MOST_HALF, MOST_HALF) for edge in (keys.min(axis=1), keys.max(axis=1)))
    near, far = np.float32(NEAR_EDGE), np.float32(FAR_EDGE)
    lowest, highest = most * far + least * near, most * near + least * far
    return lowest.astype(np.float16).astype(np.float32), highest.astype(np.float16).astype(np.float32)


def chunk_scores(query: Floats, lowest: Floats, highest: Floats) -> Floats:
    """The most that any query of a group should find in each chunk: float32[G, chunks].

    query float32[G, H / G, K]; lowest, highest float32[chunks, G, K].
    """
    rising, falling = np.maximum(query, np.float32(0.0)), np.minimum(query, np.float32(0.0))
    found: Floats = np.einsum("grk,cgk->grc", rising, highest) + np.einsum("grk,cgk->grc", falling, lowest)
    scores: Floats = found.max(axis=1)
    return scores


def unseen_chunks(query: Floats, keys: Floats, first_recent: int, n_best: int) -> NDArray[np.bool_]:
    """Which chunks a token does not see, by KV head: bool[G, chunks].

    query float32[G, H / G, K]; keys float32[S, G, K] of all positions up to its own. Of chunks that score alike it sees
    the later ones.
    """
    n_kv_heads, n_chunks = len(query), -(-len(keys) // PAGE)
    unseen = np.zeros((n_kv_heads, n_chunks), bool)
    if first_recent <= 1:
        return unseen
    others = keys[PAGE : first_recent * PAGE].reshape(-1, PAGE, *keys.shape[1:])
    order: NDArray[Any] = np.argsort(chunk_scores(query, *summaries(others)), axis=1, kind="stable")
    left_out = order[:, : order.shape[1] - n_best]
    np.put_along_axis(unseen, left_out + 1, values=True, axis=1)
    return unseen
