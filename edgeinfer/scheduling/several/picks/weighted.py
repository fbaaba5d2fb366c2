"""Votes weighted by the probability of what was written (RPC, Zhou et al., arXiv 2502.00511)."""

from __future__ import annotations

import math
from collections.abc import Sequence

from edgeinfer.scheduling.several.path_weights import different, probable
from edgeinfer.scheduling.several.samples import OPEN, Pick, Rules, SampledAnswer, Verdict, fallback, still_open
from edgeinfer.scheduling.several.votes import leading, ranked, tally


def verdict(samples: Sequence[SampledAnswer], rules: Rules) -> Verdict:
    """The answer whose different paths have the highest probability together, without improbable paths.

    Decided as soon as all that goes on, were it to end now, could not lift another answer to the leader's weight.
    """
    counted, goes_on = different(samples), still_open(samples)
    if not counted:
        return OPEN if goes_on else fallback(samples)
    most = max(sample.logprob for sample in (*counted, *goes_on))

    def probability(sample: SampledAnswer) -> float:
        return math.exp(sample.logprob - most)

    first, *others = [weight for _, weight in ranked(tally(counted, probability))]
    left = math.fsum(map(probability, goes_on))
    if not goes_on:
        told = ""
    elif 0 < rules.enough <= len(counted):
        told = ", and no more were asked for"
    elif first > (others[0] if others else 0.0) + left:
        told = ", and those left are too improbable to change that"
    else:
        return OPEN
    keeps = probable([sample.logprob for sample in counted])
    kept = [sample for sample, keep in zip(counted, keeps, strict=True) if keep]
    most = max(sample.logprob for sample in kept)  # of those that count, so that not all weights are too small
    votes = tally(kept, probability)
    share = max(votes.values()) / math.fsum(votes.values())
    without = f", {len(counted) - len(kept)} improbable ones left out" if len(kept) < len(counted) else ""
    return leading(kept, votes, f"{share:.0%} of the probability of {len(kept)} answers{without}{told}")


PICK = Pick(verdict, frozenset({"answers", "logprobs"}), "the answer whose different ways are likeliest together")
