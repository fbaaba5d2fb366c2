"""Seconds of answers side by side, and how many of them a budget allows: against a simulation pass by pass."""

from __future__ import annotations

import pytest

from edgeinfer.scheduling.several.budgets import Budget, affordable, side_by_side_s


def together_s(n_answers: int, n_cached: float) -> float:
    """A pass costs 3 ms, 1 ms more for each further answer, and a little for what is cached."""
    return 0.003 + 0.001 * (n_answers - 1) + 1e-7 * n_answers * n_cached


def simulated_s(lengths: list[int], n_cached: int) -> float:
    left, seconds = list(lengths), 0.0
    while any(left):
        n_open = sum(each > 0 for each in left)
        seconds += together_s(n_open, n_cached)
        n_cached += 1
        left = [max(0, each - 1) for each in left]
    return seconds


@pytest.mark.parametrize(
    ("lengths", "n_cached"), [([1], 0), ([100], 40), ([7, 7, 7], 3), ([10, 200, 64, 65], 500), ([0, 5], 0), ([], 9)]
)
def test_seconds_are_those_of_the_passes(lengths: list[int], n_cached: int) -> None:
    assert side_by_side_s(together_s, lengths, n_cached) == pytest.approx(simulated_s(lengths, n_cached), rel=1e-3)


@pytest.mark.parametrize("under_way", [[], [40], [10, 90]])
@pytest.mark.parametrize("most_s", [0.01, 0.3, 0.5, 1.0, 9.0])
def test_as_many_begin_as_come_to_their_end(under_way: list[int], most_s: float) -> None:
    found = affordable(Budget(0, most_s), under_way, 100, 8, 20, together_s)
    fitting = [n for n in range(9) if simulated_s(under_way + [100] * n, 20) <= most_s]
    assert found == max([*fitting, 0])


def test_a_budget_of_tokens() -> None:
    assert affordable(Budget(350, 0.0), [], 100, 8, 0, together_s) == 3
    assert affordable(Budget(350, 0.0), [60], 100, 8, 0, None) == 2
    assert affordable(Budget(350, 0.0), [300], 100, 8, 0, together_s) == 0
    assert affordable(Budget(50, 0.0), [], 100, 8, 0, together_s) == 0


def test_both_limits_hold() -> None:
    seconds = side_by_side_s(together_s, [100] * 4, 0)
    assert affordable(Budget(600, seconds * 1.001), [], 100, 8, 0, together_s) == 4
    assert affordable(Budget(300, seconds * 1.001), [], 100, 8, 0, together_s) == 3


def test_unknown_seconds_and_no_limits_limit_nothing() -> None:
    assert affordable(Budget(0, 0.001), [], 100, 8, 0, None) == 8
    assert affordable(Budget(), [5], 100, 8, 0, together_s) == 8
    assert affordable(Budget(), [], 100, 0, 0, together_s) == 0


def test_what_is_left() -> None:
    budget = Budget(100, 2.0)
    assert budget.less(40, 0.5) == Budget(60, 1.5)
    assert not budget.is_spent(99, 1.9)
    assert budget.is_spent(100, 0.0)
    assert budget.is_spent(0, 2.0)
    left = budget.less(500, 9.0)  # spent, and still a limit
    assert left.most_tokens == 1
    assert 0 < left.most_s < 1e-6
    assert Budget().less(5, 5.0) == Budget()
    assert not Budget().is_spent(10**9, 1e9)
