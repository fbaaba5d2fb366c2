"""How likely the model held a token, and which others beside it.

In: logits as the model gave them, before bias, penalties, temperature and what else shapes a choice. Out: natural
logarithms of probabilities. Knows no text.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from edgeinfer.graph.step import Floats


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """A chosen token, the logarithm of its probability, and likely tokens with theirs, the likeliest first.

    A token that a grammar forced has 0, and none beside it: nothing else could follow.
    """

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...]


def logprobs_of(logits: Floats, token: int, n_top: int) -> TokenLogprobs:
    """Those of a token and of the `n_top` likeliest, by float32[V] logits; of equals the lowest ids come first."""
    highest = float(logits.max())
    total = highest + float(np.log(np.exp(logits - np.float32(highest), dtype=np.float64).sum()))
    top: list[int] = []
    if n_top:
        edge = np.partition(logits, len(logits) - n_top)[len(logits) - n_top]
        likely = (logits >= edge).nonzero()[0]
        top = likely[np.argsort(-logits[likely], kind="stable")][:n_top].tolist()
    return TokenLogprobs(
        token, float(logits[token]) - total, tuple((each, float(logits[each]) - total) for each in top)
    )
