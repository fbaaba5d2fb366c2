"""Where answers are forked: by brute force, and the same however much of an answer is known."""

from __future__ import annotations

import itertools
import math
import random

import pytest

from edgeinfer.scheduling.several.forking import cut_places, next_cut, next_uncertain, other_tokens


def places(entropies: list[float], threshold: float, apart: int) -> list[int]:
    found, start = list[int](), 0
    while (place := next_uncertain(entropies, threshold, start)) is not None:
        found.append(place)
        start = place + apart
    return found


@pytest.mark.parametrize("seed", range(20))
def test_uncertain_places_are_the_same_of_a_beginning(seed: int) -> None:
    draw = random.Random(seed)
    entropies, apart = [draw.uniform(0, 3) for _ in range(40)], draw.randint(1, 6)
    whole = places(entropies, 1.5, apart)
    for n_known in range(len(entropies)):
        assert places(entropies[:n_known], 1.5, apart) == [place for place in whole if place < n_known]
    assert all(entropies[place] > 1.5 for place in whole)
    assert all(after - before >= apart for before, after in itertools.pairwise(whole))
    for place in range(40):  # none is left out but for those too near
        near = any(0 <= place - before < apart for before in whole)
        assert near or entropies[place] <= 1.5


def test_other_tokens_are_the_likeliest_that_may_follow() -> None:
    likely = [(7, math.log(0.4)), (3, math.log(0.3)), (2, math.log(0.2)), (9, math.log(0.06)), (5, math.log(0.04))]
    assert [token for token, _ in other_tokens(likely, 7, 2, 0.05)] == [3, 2]
    assert [token for token, _ in other_tokens(likely, 3, 4, 0.05)] == [7, 2, 9]
    assert [token for token, _ in other_tokens(likely, 3, 4, 0.05, {2, 7})] == [9]
    assert other_tokens(likely, 3, 4, 0.5) == []


@pytest.mark.parametrize("seed", range(30))
def test_cuts_are_the_stops_nearest_to_equal_parts(seed: int) -> None:
    draw = random.Random(seed)
    n_tokens, n = draw.randint(1, 60), draw.randint(1, 9)
    stops = sorted(draw.sample(range(n_tokens + 1), draw.randint(0, min(8, n_tokens))))
    found = cut_places(stops, n_tokens, n)
    able = {place for place in stops if 0 < place < n_tokens} or set(range(1, n_tokens))
    assert set(found) <= able
    assert found == sorted(set(found))
    for each in range(1, n + 1):
        wish = n_tokens * each / (n + 1)
        nearest = min((abs(place - wish) for place in able), default=None)
        assert nearest is None or any(abs(place - wish) == nearest for place in found)


def test_the_next_cut_is_not_before_its_start() -> None:
    assert next_cut([3, 8, 12], 4) == 8
    assert next_cut([3, 8, 12], 8) == 8
    assert next_cut([3, 8, 12], 13) is None
