"""The answer that the model itself finds likeliest."""

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


def verdict(samples: Sequence[SampledAnswer], _: Rules) -> Verdict:
    """The whole answer whose tokens have the highest probability together.

    No further token raises it, so a sample that is already less likely than a whole one leaves.
    """
    whole, goes_on = [sample for sample in samples if sample.is_whole], still_open(samples)
    if not whole:
        return OPEN if goes_on else fallback(samples)
    best = max(whole, key=lambda sample: (sample.logprob, -sample.number))
    beaten = [sample for sample in goes_on if sample.logprob < best.logprob]
    if len(beaten) < len(goes_on):
        return Verdict(leave=numbers(beaten))
    return decided(best, f"the likeliest of {len(samples)}: log probability {best.logprob:.1f}", samples)


PICK = Pick(verdict, frozenset({"logprobs"}), "the one that the model finds likeliest")
