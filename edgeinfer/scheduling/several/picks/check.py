"""The first answer that passes a check: a command, or a function of Python."""

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
    """The first that passes, or the most frequent of the first `enough` that do; the most frequent if none does."""
    passed = [sample for sample in samples if sample.passed]
    if len(passed) < (rules.enough or 1) and still_open(samples):
        return OPEN
    if not passed:
        votes, told = tally(samples), f"none of {len(samples)} answers passed the check"
        return leading(samples, votes, f"{told}; the most frequent is kept") if votes else fallback(samples)
    votes = tally(passed)
    told = f"{len(passed)} passed the check"
    return leading(passed, votes, told) if votes else decided(passed[0], told, samples)


PICK = Pick(verdict, frozenset({"answers", "checks"}), "the first that passes a check (check:COMMAND)")
