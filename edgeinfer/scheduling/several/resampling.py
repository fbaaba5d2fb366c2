"""Particles: weights, how many particles they are worth, and how often each goes on.

In: logarithms of weights. Out: shares, the effective sample size, how often each particle is kept. Systematic
resampling (Kitagawa, 1996) keeps a particle of share w of n particles either floor(n w) or ceil(n w) times, n w on
average; the effective sample size is that of Kong, Liu and Wong (1994). Steering of language models by this: Lew et
al., "Sequential Monte Carlo Steering of Large Language Models using Probabilistic Programs", arXiv 2306.03081.
"""

from __future__ import annotations

import math
from collections.abc import Sequence


def shares(log_weights: Sequence[float]) -> list[float]:
    """Weights that sum to 1; equal ones where all are 0."""
    most = max(log_weights)
    if most == -math.inf:
        return [1 / len(log_weights)] * len(log_weights)
    weights = [math.exp(each - most) for each in log_weights]
    total = math.fsum(weights)
    return [each / total for each in weights]


def effective_size(weights: Sequence[float]) -> float:
    """How many particles of equal weight are worth as much as these, whose weights sum to 1."""
    return 1 / math.fsum(each * each for each in weights)


def systematic(weights: Sequence[float], offset: float) -> list[int]:
    """How often each particle is kept; as many as there are in all. `offset`: a draw from [0, 1).

    Point i of n lies at (i + offset) / n of the sum, and keeps the particle in whose share it lies.
    """
    n, reached, taken, counts = len(weights), 0.0, 0, list[int]()
    last = max(number for number, weight in enumerate(weights) if weight > 0)
    for number, weight in enumerate(weights):
        reached = 1.0 if number >= last else reached + weight  # whatever was rounded
        upto = max(taken, min(n, math.ceil(n * reached - offset)))
        counts.append(upto - taken)
        taken = upto
    return counts
