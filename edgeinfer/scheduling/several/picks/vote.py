"""The answer that most samples give (self-consistency, arXiv 2203.11171)."""

from __future__ import annotations

from collections.abc import Sequence

from edgeinfer.scheduling.several.samples import (
    LEAST_VOTES,
    OPEN,
    Pick,
    Rules,
    SampledAnswer,
    Verdict,
    fallback,
    still_open,
)
from edgeinfer.scheduling.several.votes import cannot_change, confidence, entropy, leading, tally


def verdict(samples: Sequence[SampledAnswer], rules: Rules) -> Verdict:
    """The most frequent answer, as soon as no other one can reach it, or it is sure enough."""
    votes, n_open = tally(samples), len(still_open(samples))
    if not votes:
        return OPEN if n_open else fallback(samples)
    n_votes, most = round(sum(votes.values())), round(max(votes.values()))
    told = f"{most} of {n_votes} answers agree"
    if n_open == 0:
        return leading(
            samples, votes, told if most > 1 or n_votes == 1 else "no two answers agree; the shortest is kept"
        )
    if cannot_change(votes, n_open):
        return leading(samples, votes, f"{told}, and those left cannot change that")
    if rules.enough and n_votes >= rules.enough:
        return leading(samples, votes, f"{told}, and no more were asked for")
    if rules.confidence < 1 and (sure := confidence(votes)) >= rules.confidence:
        return leading(samples, votes, f"{told}, which stays so with a probability of {sure:.2f}")
    if rules.most_entropy is not None and n_votes >= LEAST_VOTES and entropy(votes) <= rules.most_entropy:
        return leading(samples, votes, f"{told}, with an entropy of {entropy(votes):.2f}")
    return OPEN


PICK = Pick(verdict, frozenset({"answers"}), "the answer that most of them give")
