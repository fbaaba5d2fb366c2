"""How sure a model is: numbers of rows of logits.

In: logits. Out: probabilities and entropies, in nats, of the softmax without temperature. Decides nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from edgeinfer.graph.step import Floats


def certainty(row: Floats) -> tuple[float, float]:
    """The highest probability of a token and the entropy of the distribution, from float32[V] logits."""
    below = row.astype(np.float64) - float(row.max())
    weights = np.exp(below)
    total = float(weights.sum())
    possible = weights > 0
    return 1 / total, float(np.log(total) - (weights[possible] * below[possible]).sum() / total)


def surprises(logits: Floats, tokens: Sequence[int]) -> list[float]:
    """Negative log probability of the token after each of the first rows, from float32[T, V] logits."""
    rows = logits[: len(tokens)].astype(np.float64)
    highest = rows.max(axis=1)
    totals = highest + np.log(np.exp(rows - highest[:, None]).sum(axis=1))
    return [float(total - row[token]) for total, row, token in zip(totals, rows, tokens, strict=True)]
