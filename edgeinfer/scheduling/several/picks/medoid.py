"""The answer most like all the others, for texts that are never written alike (minimum Bayes risk, by embeddings)."""

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


def verdict(samples: Sequence[SampledAnswer], rules: Rules) -> Verdict:
    """The whole answer with the highest average likeness to the others, once all or `enough` are whole."""
    whole = [sample for sample in samples if sample.is_whole]
    if still_open(samples) and not 0 < rules.enough <= len(whole):
        return OPEN
    if not whole:
        return fallback(samples)
    if len(whole) == 1:
        return decided(whole[0], "the only one that came to an end", samples)
    best = max(whole, key=lambda sample: (round(sample.likeness, 6), -sample.number))
    return decided(best, f"most like the other {len(whole) - 1}: {best.likeness:.2f} on average", samples)


PICK = Pick(verdict, frozenset({"likeness"}), "the one most like the others, by embeddings; for free texts")
