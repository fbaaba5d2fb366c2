"""The answer most like all the others, for texts that no two lanes write alike (minimum Bayes risk, in embeddings)."""

from __future__ import annotations

from collections.abc import Sequence

from edgeinfer.scheduling.several.lanes import OPEN, Lane, Pick, Rules, Verdict, decided, fallback, still_open


def verdict(lanes: Sequence[Lane], rules: Rules) -> Verdict:
    """The whole answer with the highest average likeness to the others, once all or `enough` are whole."""
    whole = [lane for lane in lanes if lane.is_whole]
    if still_open(lanes) and not 0 < rules.enough <= len(whole):
        return OPEN
    if not whole:
        return fallback(lanes)
    if len(whole) == 1:
        return decided(whole[0], "the only one that came to an end", lanes)
    best = max(whole, key=lambda lane: (round(lane.likeness, 6), -lane.number))
    return decided(best, f"most like the other {len(whole) - 1}: {best.likeness:.2f} on average", lanes)


PICK = Pick(verdict, frozenset({"likeness"}), "the one most like the others, by embeddings; for free texts")
