"""The shortest answers, and the most frequent of these (short-m@k, Hassid et al., arXiv 2505.17813)."""

from __future__ import annotations

from collections.abc import Sequence

from edgeinfer.scheduling.several.samples import (
    OPEN,
    Pick,
    Rules,
    SampledAnswer,
    Verdict,
    decided,
    fallback,
    numbers,
    still_open,
)
from edgeinfer.scheduling.several.votes import leading, tally


def verdict(samples: Sequence[SampledAnswer], rules: Rules) -> Verdict:
    """The most frequent of the `enough` shortest answers; 0: the shortest one.

    A sample that is as long as these leaves. What is chosen depends on lengths alone, not on which sample was faster.
    """
    m, goes_on = rules.enough or 1, still_open(samples)
    shortest = sorted(
        (sample for sample in samples if sample.is_whole), key=lambda sample: (sample.n_tokens, sample.number)
    )[:m]
    if len(shortest) < m and goes_on:
        return OPEN
    if not shortest:
        return fallback(samples)
    longest = shortest[-1].n_tokens
    late = [sample for sample in goes_on if sample.n_tokens >= longest]
    if len(late) < len(goes_on):
        return Verdict(leave=numbers(late))
    if len(shortest) == 1:
        return decided(shortest[0], f"the shortest of {len(samples)}: {shortest[0].n_tokens} tokens", samples)
    votes = tally(shortest)
    if not votes:
        return decided(shortest[0], "the shortest; none of them says anything", samples)
    told = f"{round(max(votes.values()))} of the {len(shortest)} shortest agree"
    return leading(shortest, votes, told)


PICK = Pick(verdict, frozenset({"answers"}), "the shortest, or the most frequent of the M shortest (--enough M)")
