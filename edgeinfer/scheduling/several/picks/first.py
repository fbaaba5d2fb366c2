"""The answers that are finished first, and the most frequent of these."""

from __future__ import annotations

from collections.abc import Sequence

from edgeinfer.scheduling.several.lanes import OPEN, Lane, Pick, Rules, Verdict, decided, fallback, still_open
from edgeinfer.scheduling.several.votes import leading, tally


def verdict(lanes: Sequence[Lane], rules: Rules) -> Verdict:
    """The most frequent of the first `enough` that came to an end; 0: the first one. Depends on their speed."""
    m, whole = rules.enough or 1, [lane for lane in lanes if lane.is_whole]
    if len(whole) < m and still_open(lanes):
        return OPEN
    if not whole:
        return fallback(lanes)
    if m == 1:
        return decided(whole[0], "the first that was finished", lanes)
    votes = tally(whole)
    if not votes:
        return decided(whole[0], "none of those finished first says anything", lanes)
    return leading(whole, votes, f"{round(max(votes.values()))} of the first {len(whole)} agree")


PICK = Pick(verdict, frozenset({"answers"}), "the first that is finished, or the most frequent of the first M")
