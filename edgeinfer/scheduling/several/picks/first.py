"""The answers that are finished first, and the most frequent of these."""

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
    still_open,
)
from edgeinfer.scheduling.several.votes import leading, tally


def verdict(samples: Sequence[SampledAnswer], rules: Rules) -> Verdict:
    """The most frequent of the first `enough` that came to an end; 0: the first one. Depends on their speed."""
    m, whole = rules.enough or 1, [sample for sample in samples if sample.is_whole]
    if len(whole) < m and still_open(samples):
        return OPEN
    if not whole:
        return fallback(samples)
    if m == 1:
        return decided(whole[0], "the first that was finished", samples)
    votes = tally(whole)
    if not votes:
        return decided(whole[0], "none of those finished first says anything", samples)
    return leading(whole, votes, f"{round(max(votes.values()))} of the first {len(whole)} agree")


PICK = Pick(verdict, frozenset({"answers"}), "the first that is finished, or the most frequent of the first M")
