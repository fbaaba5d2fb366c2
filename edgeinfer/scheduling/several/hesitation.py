"""When a small model that writes hands over to a large one, and which of its tokens stay: rules on pure numbers.

In: how sure the small model is of the next token, how probable its tokens are by the large one, scores of its steps.
Out: decisions. Knows no models. Sources: BiLD (Kim et al., arXiv 2302.07863) for fallback and rollback, SpecReason (Pan
et al., arXiv 2504.07891) for steps.
"""

from __future__ import annotations

from collections.abc import Sequence

from edgeinfer.hand_over import HandOver

STEP_ENDS = ".!?:"
"""A step ends with a line, or with a sentence"""
LEAST_STEP = 8
"""of at least so many tokens,"""
MOST_STEP = 64
"""and in any case after so many."""


def hands_over(rule: HandOver, chance: float, entropy: float) -> bool:
    """Whether the large model writes the next token.

    chance: the highest probability that the small model gives to one; entropy: of its distribution, in nats.
    """
    if rule.kind == "bild":
        return chance < rule.limit
    return rule.kind == "entropy" and entropy > rule.limit


def stays(rule: HandOver, surprise: float) -> bool:
    """Whether a token of the small model stays whose negative log probability by the large one is `surprise`.

    With a rollback of 0 none does, however certain.
    """
    return 0 < rule.rollback >= surprise


def rollback_point(rule: HandOver, surprises: Sequence[float]) -> int:
    """How many of the small model's latest tokens stay: all before the first that does not."""
    return next((place for place, surprise in enumerate(surprises) if not stays(rule, surprise)), len(surprises))


def ends_step(text: str, n_tokens: int) -> bool:
    """Whether a step, its text so far of so many tokens, is over."""
    return text.endswith("\n") or n_tokens >= MOST_STEP or (n_tokens >= LEAST_STEP and text.endswith(tuple(STEP_ENDS)))


def is_good_step(rule: HandOver, score: float) -> bool:
    """Whether a step stays that the large model rates with this score, of 9."""
    return score >= rule.limit
