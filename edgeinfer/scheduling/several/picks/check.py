"""The first answer that passes a check: a command, or a function of Python."""

from __future__ import annotations

from collections.abc import Sequence

from edgeinfer.scheduling.several.lanes import OPEN, Lane, Pick, Rules, Verdict, decided, fallback, still_open
from edgeinfer.scheduling.several.votes import leading, tally


def verdict(lanes: Sequence[Lane], rules: Rules) -> Verdict:
    """The first that passes, or the most frequent of the first `enough` that do; the most frequent if none does."""
    passed = [lane for lane in lanes if lane.passed]
    if len(passed) < (rules.enough or 1) and still_open(lanes):
        return OPEN
    if not passed:
        votes, told = tally(lanes), f"none of {len(lanes)} answers passed the check"
        return leading(lanes, votes, f"{told}; the most frequent is kept") if votes else fallback(lanes)
    votes = tally(passed)
    told = f"{len(passed)} passed the check"
    return leading(passed, votes, told) if votes else decided(passed[0], told, lanes)


PICK = Pick(verdict, frozenset({"answers", "checks"}), "the first that passes a check (check:COMMAND)")
