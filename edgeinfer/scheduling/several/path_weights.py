"""Weights of answers by the probability of what was written, and which paths are too improbable to count.

In: log probabilities of paths. Out: weights, the highest 1; which paths to leave out. Perplexity consistency gives an
answer the sum of the probabilities of the different paths that lead to it, which needs fewer samples than counting
them; reasoning pruning leaves out paths that a mixture of two Weibull distributions takes for improbable ones and that
are below the average (Zhou et al., "Bridging internal probability and self-consistency", arXiv 2502.00511).
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence

from edgeinfer.scheduling.several.samples import SampledAnswer

LEAST_FITTED = 6
"""Fewest paths that two distributions can be told apart from."""
ROUNDS = 20
"""Rounds of expectation maximisation."""
MOST_SHAPE = 1e3


def different(samples: Sequence[SampledAnswer]) -> list[SampledAnswer]:
    """Samples that count, one for each path: the same tokens twice are no second reason."""
    found: dict[Hashable, SampledAnswer] = {}
    for sample in samples:
        if sample.votes:
            found.setdefault(sample.number if sample.path is None else sample.path, sample)
    return list(found.values())


def probabilities(logprobs: Sequence[float]) -> list[float]:
    """Probabilities of paths relative to the likeliest one, which is 1."""
    most = max(logprobs, default=0.0)
    return [math.exp(each - most) for each in logprobs]


def probable(logprobs: Sequence[float]) -> list[bool]:
    """Which paths count; all if there are too few to tell."""
    values = probabilities(logprobs)
    if len(values) < LEAST_FITTED or min(values) == max(values):
        return [True] * len(values)
    average = math.fsum(values) / len(values)
    return [value >= average or share >= 0.5 for value, share in zip(values, upper_shares(values), strict=True)]


def upper_shares(values: Sequence[float]) -> list[float]:
    """How likely each of some positive numbers belongs to the higher of two Weibull distributions that fit them all."""
    values = [max(value, 1e-300) for value in values]
    middle = sorted(values)[len(values) // 2]
    upper = [0.9 if value >= middle else 0.1 for value in values]
    if min(values) == max(values):
        return [1.0] * len(values)
    for _ in range(ROUNDS):
        part = min(0.99, max(0.01, math.fsum(upper) / len(upper)))
        high, low = _fitted(values, upper), _fitted(values, [1 - each for each in upper])
        if _mean(*high) < _mean(*low):
            high, low, part = low, high, 1 - part
        logs = [(math.log(part) + _density(x, *high), math.log(1 - part) + _density(x, *low)) for x in values]
        upper = [1 / (1 + math.exp(min(700.0, max(-700.0, b - a)))) for a, b in logs]
    return upper


def _density(x: float, shape: float, scale: float) -> float:
    """Logarithm of a Weibull density."""
    ratio = math.log(x) - math.log(scale)
    return math.log(shape / scale) + (shape - 1) * ratio - math.exp(min(700.0, shape * ratio))


def _mean(shape: float, scale: float) -> float:
    return scale * math.gamma(1 + 1 / shape)


def _fitted(values: Sequence[float], weights: Sequence[float]) -> tuple[float, float]:
    """Shape and scale of the Weibull distribution that fits weighted numbers best (maximum likelihood)."""
    weights = [max(weight, 1e-6) for weight in weights]
    total = math.fsum(weights)
    logs = [math.log(value) for value in values]
    top = max(logs)
    average = math.fsum(w * x for w, x in zip(weights, logs, strict=True)) / total

    def excess(shape: float) -> float:
        """Grows with the shape; 0 for the best one."""
        powers = [w * math.exp(shape * (x - top)) for w, x in zip(weights, logs, strict=True)]
        return math.fsum(p * x for p, x in zip(powers, logs, strict=True)) / math.fsum(powers) - 1 / shape - average

    low, high = 1e-2, MOST_SHAPE
    for _ in range(40):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if excess(middle) > 0 else (middle, high)
    shape = math.sqrt(low * high)
    powers = math.fsum(w * math.exp(shape * (x - top)) for w, x in zip(weights, logs, strict=True))
    return shape, math.exp(top) * (powers / total) ** (1 / shape)
