"""Votes, judged by counting every way in which the open samples could still vote, and by integration."""

from __future__ import annotations

import itertools
import math

import pytest

from edgeinfer.scheduling.several.samples import SampledAnswer
from edgeinfer.scheduling.several.votes import cannot_change, confidence, entropy, leading, ranked, tally


def samples(*answers: object) -> list[SampledAnswer]:
    """Finished samples with these answers."""
    return [SampledAnswer(number, 5, True, True, answer) for number, answer in enumerate(answers)]


def test_lanes_that_say_nothing_or_were_cut_do_not_vote() -> None:
    votes = tally(
        [*samples("a", "b", "a", None), SampledAnswer(4, 9, True, False, "b"), SampledAnswer(5, 9, False, False, "b")]
    )
    assert votes == {"a": 2, "b": 1}
    assert ranked(votes) == [("a", 2), ("b", 1)]


@pytest.mark.parametrize("n_open", [0, 1, 2, 3])
def test_a_leader_is_safe_when_no_way_to_vote_changes_it(n_open: int) -> None:
    for counts in itertools.product(range(4), repeat=3):
        votes = {answer: count for answer, count in enumerate(counts) if count}
        leads = []
        for rest in itertools.product(range(4), repeat=n_open):  # 3: an answer that nobody gave so far
            total = [count + rest.count(answer) for answer, count in enumerate((*counts, 0))]
            leads.append({answer for answer, count in enumerate(total) if count == max(total)})
        safe = bool(votes) and any(all(each == {answer} for each in leads) for answer in votes)
        assert cannot_change(votes, n_open) == safe


@pytest.mark.parametrize(("first", "second"), [(1, 0), (3, 1), (5, 5), (8, 2), (40, 30)])
def test_confidence_is_the_posterior_that_the_leader_is_the_more_frequent(first: int, second: int) -> None:
    n = 20_000
    shares = [(i + 0.5) / n for i in range(n)]
    logs = [first * math.log(p) + second * math.log(1 - p) for p in shares]
    most = max(logs)
    weights = [math.exp(each - most) for each in logs]
    above = math.fsum(weight for p, weight in zip(shares, weights, strict=True) if p > 0.5) / math.fsum(weights)
    assert confidence({"a": first, "b": second}) == pytest.approx(above, abs=1e-6)


def test_without_votes_nothing_is_sure() -> None:
    assert confidence({}) == 0


def test_entropy_of_equal_shares_is_the_logarithm_of_their_number() -> None:
    assert entropy({"a": 3.0, "b": 3.0, "c": 3.0}) == pytest.approx(math.log(3))
    assert entropy({"a": 3.0}) == 0


def test_of_those_that_agree_the_shortest_is_chosen() -> None:
    told = [
        SampledAnswer(0, 9, True, True, "a"),
        SampledAnswer(1, 4, True, True, "b"),
        SampledAnswer(2, 7, True, True, "a"),
        SampledAnswer(3, 2),
    ]
    verdict = leading(told, tally(told), "why")
    assert (verdict.chosen, verdict.reason, verdict.leave) == (2, "why", {3})
