"""How sure a model is: numbers of rows of logits.

In: logits. Out: probabilities and entropies, in nats, of the softmax without temperature. Decides nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from edgeinfer.graph.step import Floats


def certainty(row: Floats) -> tuple[float, float]:
    """The highest probability of a token and the entropy of the distribution, from float32[V] logits."""
    below = row - row.max()
    weights = np.exp(below)
    total = float(weights.sum(dtype=np.float64))
    possible = weights > 0
    weighted = float((weights[possible] * below[possible]).sum(dtype=np.float64))
    return 1 / total, math.log(total) - weighted / total


def surprises(logits: Floats, tokens: Sequence[int]) -> list[float]:
    """Negative log probability of the token after each of the first rows, from float32[T, V] logits."""
    rows = logits[: len(tokens)]
    highest = rows.max(axis=1)
    totals = np.exp(rows - highest[:, None]).sum(axis=1, dtype=np.float64)
    own = rows[np.arange(len(tokens)), tokens]
    return [float(each) for each in np.log(totals) + (highest - own).astype(np.float64)]
