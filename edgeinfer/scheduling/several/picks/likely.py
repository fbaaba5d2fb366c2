"""The answer that the model itself finds likeliest."""

from __future__ import annotations

from collections.abc import Sequence

from edgeinfer.scheduling.several.lanes import OPEN, Lane, Pick, Rules, Verdict, decided, fallback, numbers, still_open


def verdict(lanes: Sequence[Lane], _: Rules) -> Verdict:
    """The whole answer whose tokens have the highest probability together.

    No further token raises it, so a lane that is already less likely than a whole one leaves.
    """
    whole, goes_on = [lane for lane in lanes if lane.is_whole], still_open(lanes)
    if not whole:
        return OPEN if goes_on else fallback(lanes)
    best = max(whole, key=lambda lane: (lane.logprob, -lane.number))
    beaten = [lane for lane in goes_on if lane.logprob < best.logprob]
    if len(beaten) < len(goes_on):
        return Verdict(leave=numbers(beaten))
    return decided(best, f"the likeliest of {len(lanes)}: log probability {best.logprob:.1f}", lanes)


PICK = Pick(verdict, frozenset({"logprobs"}), "the one that the model finds likeliest")
