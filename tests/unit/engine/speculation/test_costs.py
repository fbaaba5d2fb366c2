"""T(k): curves through points, corrections by what passes took, and how it is measured."""

from __future__ import annotations

import pytest

from edgeinfer.engine.speculation.costs import (
    DEEP,
    DEPTH_STEP,
    EVERY,
    FIRST_UNSEEN,
    SIZES,
    STREAMED_SIZES,
    UNSEEN,
    Costs,
    MeasuredCosts,
    measure,
)
from edgeinfer.engine.speculation.records import MOST


def test_a_curve_goes_straight_between_points_and_on_beyond_them() -> None:
    costs = Costs({4: 1.3, 8: 2.1})
    assert costs.relative[1:9] == pytest.approx([1.0, 1.1, 1.2, 1.3, 1.5, 1.7, 1.9, 2.1])
    assert costs.relative[16] == pytest.approx(2.1 + 8 * 0.2)
    assert Costs({}).relative[10] == pytest.approx(10)
    assert Costs({2: 1.0}).relative[MOST] == pytest.approx(1.0)


def test_cached_tokens_make_passes_dearer() -> None:
    costs = Costs.of(MeasuredCosts({1: 2.0, 4: 3.0, 8: 4.0}, 500, {1: 3.0, 4: 6.0}))
    assert costs.relative[4] == pytest.approx(1.5)
    costs.move(500)
    assert costs.relative[4] == pytest.approx(2.0)
    assert costs.relative[8] == pytest.approx((2.0 + 1.5 + 4 / 3) / 1.5)  # by 0.001 + 4 / 3 / 500 a cached token
    costs.move(1000)
    assert costs.relative[4] == pytest.approx(4.5 / 2.0)
    costs.move(1000 + DEPTH_STEP - 1)
    assert costs.relative[4] == pytest.approx(4.5 / 2.0)
    assert Costs.of(MeasuredCosts({1: 2.0, 4: 3.0}, 0, {})).relative[4] == pytest.approx(1.5)


@pytest.mark.parametrize("n_texts", [1, 3])
@pytest.mark.parametrize("n_prompt", [1, 20, 64, 500])
def test_beside_a_prompt_a_draft_costs_what_it_adds(n_texts: int, n_prompt: int) -> None:
    """A pass of n tokens takes max(10, n) where it waits for ten tokens' time: up to there a draft costs nothing."""
    costs = Costs({1: 10.0, 10: 10.0, MOST: float(MOST)}, corrected=False)
    costs.move(100, n_texts, n_prompt)
    found = costs.curve.tolist()
    for n_tokens in range(n_texts, MOST + 1):
        added = max(10, n_prompt + n_tokens) - max(10, n_prompt + n_texts)
        assert found[n_tokens] == pytest.approx(10 + added)
    costs.move(100, n_texts)
    assert costs.curve.tolist() == pytest.approx([max(10, n) for n in range(MOST + 1)])


def test_seconds_of_texts_side_by_side() -> None:
    costs = Costs.of(MeasuredCosts({1: 2.0, 4: 3.0, 8: 4.0}, 500, {1: 3.0, 4: 6.0}))
    assert costs.seconds_together(1, 0) == pytest.approx(2.0)  # as measured, before any pass
    assert costs.seconds_together(4, 0) == pytest.approx(3.0)
    assert costs.seconds_together(4, 500) == pytest.approx(3.0 + 4 * 1.0)  # each reads what it has cached
    costs.move(0)
    costs.observe(1, 4.0)
    assert costs.seconds_together(4, 0) == pytest.approx(6.0)  # the machine is half as fast now
    assert Costs({}).seconds_together(8, 100) == 0.0


def test_passes_that_take_longer_than_they_should_become_dearer() -> None:
    costs = Costs({4: 1.2, 8: 1.4})
    for _ in range(400):
        costs.observe(1, 0.002)
        costs.observe(5, 0.002 * 1.8)
    assert costs.relative[5] == pytest.approx(1.8, rel=0.05)
    assert costs.relative[6] == pytest.approx(1.8 * 1.3 / 1.25, rel=0.05)  # of the same class
    assert costs.relative[8] > 1.35


def test_a_slower_machine_changes_no_ratio() -> None:
    costs = Costs({4: 1.2, 8: 1.4})
    before = costs.relative
    for seconds in (0.002, 0.006):
        for _ in range(300):
            costs.observe(1, seconds)
            costs.observe(4, 1.2 * seconds)
    assert costs.relative == pytest.approx(before, rel=0.02)


def test_passes_far_apart_are_not_compared() -> None:
    costs = Costs({4: 1.2})
    before = costs.relative
    for _ in range(200):
        costs.begin()
        costs.observe(1, 0.002)
        costs.begin()
        costs.observe(4, 0.009)
    assert costs.relative == before


def test_one_strange_pass_says_little() -> None:
    costs = Costs({4: 1.2})
    for _ in range(100):
        costs.observe(1, 0.002)
        costs.observe(4, 0.0024)
    costs.observe(1, 0.002)
    costs.observe(4, 5.0)
    for _ in range(EVERY):
        costs.observe(1, 0.002)
        costs.observe(4, 0.0024)
    assert costs.relative[4] == pytest.approx(1.2, rel=0.02)


def test_an_assumed_curve_stays() -> None:
    costs = Costs({4: 1.2}, corrected=False)
    for _ in range(100):
        costs.observe(4, 1.0)
        assert not costs.wants_single
    assert costs.relative[4] == pytest.approx(1.2)


def test_a_pass_of_one_token_is_due_now_and_then() -> None:
    costs = Costs({4: 0.5})
    waits: list[int] = []
    for _ in range(30):
        wait = 0
        while not costs.wants_single:
            costs.observe(4, 0.002)
            wait += 1
        costs.observe(1, 0.002)
        waits.append(wait)
    assert waits[0] == FIRST_UNSEEN
    assert waits == sorted(waits)
    assert waits[-1] == UNSEEN


def test_passes_of_other_texts_make_none_of_one_token_due() -> None:
    """Several answers on two devices are drafted for without being measured: one due with them would stay due."""
    costs = Costs({4: 0.5})
    for _ in range(FIRST_UNSEEN):
        costs.observe(4, 0.002)
    assert costs.wants_single
    costs.move(0, 2)
    assert not costs.wants_single
    for _ in range(FIRST_UNSEEN):
        costs.observe(4, 0.002)
    assert costs.wants_single
    costs.observe(2, 0.002)
    assert not costs.wants_single
    costs.move(0, 1)
    assert costs.wants_single


def test_what_disturbs_a_measurement_is_left_out() -> None:
    ran: list[int] = []

    def run(n_tokens: int, depth: int) -> float:
        ran.append(n_tokens)
        slow = 3.0 if len(ran) < 60 or n_tokens == 2 else 1.0  # the first round, and two tokens always
        return 0.002 * slow * (0.9 + 0.1 * n_tokens)

    found = measure(run, MOST, 0).first
    assert found[4] / found[1] == pytest.approx(1.3)
    assert found[2] == found[3]


@pytest.mark.parametrize("first_s", [0.002, 0.2])
def test_measuring_goes_up_to_where_nothing_can_pay(first_s: float) -> None:
    ran: list[int] = []

    def run(n_tokens: int, depth: int) -> float:
        ran.append(n_tokens)
        return first_s * (0.8 + 0.2 * n_tokens + depth / 1000 * n_tokens + (len(ran) < 3))

    found = measure(run, MOST, 4096)
    assert found.first[8] / found.first[1] == pytest.approx(2.4)
    assert max(found.first) == (48 if first_s < 0.1 else 64)  # they cost 10.4 and 13.6
    assert set(found.first) <= set(SIZES)
    assert found.depth == DEEP
    assert found.deep[4] == pytest.approx(first_s * (1.6 + 4 * DEEP / 1000))
    assert max(measure(run, 10, 4096).first) == 9
    assert measure(run, 10, DEEP - 1).deep == {}
    few = len(ran)
    measure(run, MOST, 4096)
    assert (len(ran) - few > 100) == (first_s < 0.1)


def test_passes_that_wait_for_the_disk_are_measured_once_each() -> None:
    """Each of them reads gigabytes."""
    ran: list[int] = []
    told: list[tuple[int, int]] = []

    def run(n_tokens: int, depth: int) -> float:
        ran.append(n_tokens)
        return 2.0 + 0.01 * n_tokens

    def tell(done: int, total: int) -> None:
        told.append((done, total))

    found = measure(run, MOST, 4096, streamed=True, told=tell)
    assert ran == [1, *STREAMED_SIZES]
    assert (found.first[64] / found.first[1], found.deep) == (pytest.approx(2.64 / 2.01), {})
    assert told == [(number, len(STREAMED_SIZES)) for number in range(len(STREAMED_SIZES))]
