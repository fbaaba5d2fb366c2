"""Prompts of tokens for filling in a gap, which are cut where they do not fit."""

from __future__ import annotations

from collections import Counter

import pytest

from edgeinfer.models.text.gap_tokens import STEPS, GapTokens

GAP = GapTokens.of((9000, 9001, 9002, None, None))
assert GAP is not None


def test_what_fits_is_whole() -> None:
    assert GAP.prompt([1, 2, 3], [4, 5], 8) == [9000, 1, 2, 3, 9001, 4, 5, 9002]
    assert GAP.prompt([], [], 3) == [9000, 9001, 9002]


@pytest.mark.parametrize("n_before", [0, 5, 60, 75, 76, 77, 200, 1000])
@pytest.mark.parametrize("n_after", [0, 5, 25, 26, 300])
def test_the_nearest_tokens_are_kept(n_before: int, n_after: int) -> None:
    before, after, room = list(range(n_before)), list(range(n_after)), 100
    prompt = GAP.prompt(before, after, room + 3)
    n_kept = prompt.index(9001) - 1
    assert prompt == [9000, *before[n_before - n_kept :], 9001, *after[: len(prompt) - 3 - n_kept], 9002]
    fits = n_before + n_after <= room
    assert len(prompt) - 3 == n_before + n_after if fits else room - room // STEPS < len(prompt) - 3 <= room


def test_no_room_leaves_the_marks() -> None:
    assert GAP.prompt([1, 2], [3], 0) == [9000, 9001, 9002]


def test_a_prompt_begins_as_before_while_somebody_types() -> None:
    room = 16 * STEPS
    prompts = [GAP.prompt(list(range(n)), list(range(500)), room + 3) for n in range(2 * room, 3 * room)]
    begins = Counter(prompt[1] for prompt in prompts)
    assert len(begins) <= STEPS + 1, "one beginning for each step, not for each token"
