"""Votes over what answers say: who leads, whether that can change, how sure it is.

In: samples. Out: weights by answer. Self-consistency (Wang et al., arXiv 2203.11171) takes the answer with the most
votes; adaptive consistency (Aggarwal et al., arXiv 2305.11860) stops once the majority is likely to stay one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence

from edgeinfer.scheduling.several.samples import SampledAnswer, Verdict, decided


def one_each(sample: SampledAnswer) -> float:
    """The weight of a sample where all that it stands for count alike."""
    return sample.weight


def tally(
    samples: Sequence[SampledAnswer], weight: Callable[[SampledAnswer], float] = one_each
) -> dict[Hashable, float]:
    """The weight of each answer, in order of its first sample."""
    found: dict[Hashable, float] = {}
    for sample in samples:
        if sample.votes:
            found[sample.answer] = found.get(sample.answer, 0.0) + weight(sample)
    return found


def ranked(votes: Mapping[Hashable, float]) -> list[tuple[Hashable, float]]:
    """Answers by weight, the heaviest first; of equals, the one that came first."""
    return sorted(votes.items(), key=lambda each: -each[1])


def cannot_change(votes: Mapping[Hashable, float], n_open: int) -> bool:
    """Whether `n_open` further votes of one each cannot put another answer ahead of the leader, nor level with it."""
    first, *others = [weight for _, weight in ranked(votes)] or [0.0]
    return first > (others[0] if others else 0.0) + n_open


def confidence(votes: Mapping[Hashable, float]) -> float:
    """How likely the leader is to be more frequent than the second, if draws went on for ever.

    The posterior of the share of the leader among the two, from a uniform prior, beyond one half: the probability that
    Beta(a + 1, b + 1) exceeds 1/2, as in adaptive consistency. 0 without votes.
    """
    first, second = ([round(weight) for _, weight in ranked(votes)] + [0, 0])[:2]
    if not first:
        return 0.0
    n = first + second + 1
    return float(math.fsum(math.comb(n, i) for i in range(first + 1)) / 2**n)


def entropy(votes: Mapping[Hashable, float]) -> float:
    """Entropy of the shares of answers, in nats; 0 if all say the same."""
    total = math.fsum(votes.values())
    shares = [weight / total for weight in votes.values() if weight > 0]
    return math.fsum(share * math.log(1 / share) for share in shares)


def leading(samples: Sequence[SampledAnswer], votes: Mapping[Hashable, float], reason: str) -> Verdict:
    """The choice of the shortest sample that says what leads; of answers with equal votes, the shortest's."""
    most = max(votes.values())
    best = [sample for sample in samples if sample.votes and votes.get(sample.answer) == most]
    return decided(min(best, key=lambda sample: (sample.n_tokens, sample.number)), reason, samples)
