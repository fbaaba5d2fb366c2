"""When a small model hands over, and what stays of what it wrote: judged by the papers' conditions."""

from __future__ import annotations

import random
from math import inf

import pytest

from edgeinfer.hand_over import HandOver
from edgeinfer.scheduling.several.hesitation import (
    LEAST_STEP,
    MOST_STEP,
    ends_step,
    hands_over,
    is_good_step,
    rollback_point,
)


def test_bild_falls_back_below_its_probability_whatever_the_entropy() -> None:
    rule = HandOver("bild", 0.6, 3.0)
    assert [hands_over(rule, chance, 9.0) for chance in (0.0, 0.59, 0.6, 1.0)] == [True, True, False, False]
    assert not any(hands_over(HandOver("bild", 0.0, 3.0), chance, 9.0) for chance in (0.0, 0.5, 1.0))


def test_entropy_hands_over_above_its_limit_whatever_the_probability() -> None:
    rule = HandOver("entropy", 1.5)
    assert [hands_over(rule, 0.0, entropy) for entropy in (0.0, 1.5, 1.6, 9.0)] == [False, False, True, True]
    assert not hands_over(HandOver("entropy", inf), 0.0, 99.0)


def test_steps_never_hand_over_within_one() -> None:
    assert not hands_over(HandOver("steps", 9.0), 0.0, 99.0)


def test_tokens_stay_up_to_the_first_that_surprises_the_large_model() -> None:
    """BiLD, algorithm 1: rolled back to the least m with d(p_L, p_S) above the threshold."""
    chance = random.Random(4)
    for _ in range(200):
        rule = HandOver("bild", 0.6, chance.choice([0.0, 1.0, 2.5, inf]))
        surprises = [chance.choice([0.0, 0.5, 1.0, 2.5, 2.6, 40.0]) for _ in range(chance.randint(0, 6))]
        above = [m for m in range(len(surprises)) if surprises[m] > rule.rollback or not rule.rollback]
        assert rollback_point(rule, surprises) == (min(above) if above else len(surprises))


@pytest.mark.parametrize(
    ("text", "n_tokens", "is_over"),
    [
        ("So x is 3.", LEAST_STEP, True),
        ("So x is 3.", LEAST_STEP - 1, False),
        ("So x is 3. ", LEAST_STEP, False),
        ("Thus:", LEAST_STEP, True),
        ("\n", 1, True),
        ("word", MOST_STEP - 1, False),
        ("word", MOST_STEP, True),
        ("", 0, False),
    ],
)
def test_a_step_is_a_line_or_a_sentence(text: str, n_tokens: int, is_over: bool) -> None:
    assert ends_step(text, n_tokens) == is_over


def test_a_step_needs_its_score() -> None:
    assert [is_good_step(HandOver("steps", 7.0), score) for score in (0, 6, 7, 9)] == [False, False, True, True]
