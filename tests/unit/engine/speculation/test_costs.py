"""T(k): curves through points, corrections by what passes took, and how it is measured."""

from __future__ import annotations

import pytest

from edgeinfer.engine.speculation.costs import SIZES, UNSEEN, Costs, measure
from edgeinfer.engine.speculation.records import MOST


def test_a_curve_goes_straight_between_points_and_on_beyond_them() -> None:
    costs = Costs({4: 1.3, 8: 2.1})
    assert costs.relative[1:9] == pytest.approx([1.0, 1.1, 1.2, 1.3, 1.5, 1.7, 1.9, 2.1])
    assert costs.relative[16] == pytest.approx(2.1 + 8 * 0.2)
    assert Costs({}).relative[10] == pytest.approx(10)
    assert Costs({2: 1.0}).relative[MOST] == pytest.approx(1.0)


def test_passes_that_take_longer_than_they_should_become_dearer() -> None:
    costs = Costs({4: 1.2, 8: 1.4})
    for _ in range(400):
        costs.observe(1, 0.002)
        costs.observe(4, 0.002 * 1.8)
    assert costs.relative[4] == pytest.approx(1.8, rel=0.05)
    assert costs.relative[5] == pytest.approx(1.8 * 1.25 / 1.2, rel=0.05)  # of the same class
    assert costs.relative[8] > 1.35


def test_a_slower_machine_changes_no_ratio() -> None:
    costs = Costs({4: 1.2, 8: 1.4})
    before = costs.relative
    for seconds in (0.002, 0.006):
        for _ in range(300):
            costs.observe(1, seconds)
            costs.observe(4, 1.2 * seconds)
    assert costs.relative == pytest.approx(before, rel=0.06)


def test_one_strange_pass_says_little() -> None:
    costs = Costs({4: 1.2})
    for _ in range(100):
        costs.observe(1, 0.002)
        costs.observe(4, 0.0024)
    costs.observe(4, 5.0)
    assert costs.relative[4] == pytest.approx(1.2, rel=0.05)


def test_an_assumed_curve_stays() -> None:
    costs = Costs({4: 1.2}, corrected=False)
    for _ in range(100):
        costs.observe(4, 1.0)
        assert not costs.wants_single
    assert costs.relative[4] == pytest.approx(1.2)


def test_a_pass_of_one_token_is_due_now_and_then() -> None:
    costs = Costs({4: 0.5})
    for _ in range(UNSEEN):
        assert not costs.wants_single
        costs.observe(4, 0.002)
    assert costs.wants_single
    costs.observe(1, 0.002)
    assert not costs.wants_single


@pytest.mark.parametrize("first_s", [0.002, 0.2])
def test_measuring_goes_up_to_where_nothing_can_pay(first_s: float) -> None:
    ran: list[int] = []

    def run(n_tokens: int) -> float:
        ran.append(n_tokens)
        return first_s * (0.8 + 0.2 * n_tokens + (len(ran) < 3))

    found = measure(run)
    assert found[8] / found[1] == pytest.approx(2.4)
    assert max(found) == 48  # costs 10.4
    assert set(found) <= set(SIZES)
    assert max(measure(run, most=10)) == 8
