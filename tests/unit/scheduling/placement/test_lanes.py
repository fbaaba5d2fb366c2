"""The balance of lanes against HeteGen's formula and against halving intervals."""

from __future__ import annotations

from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgeinfer.scheduling.placement.fractions import NOISE, DeviceSeconds, balance

SECONDS = st.floats(1e-6, 1.0)
LANES = st.builds(
    DeviceSeconds, st.floats(0, 0.5), SECONDS, st.floats(0, 0.5), st.just(inf) | SECONDS, st.floats(0, 0.2)
)


def test_hetegen_balances_the_cpu_with_the_slower_of_transfer_and_accelerator():
    # T_cpu = (1 - a) 0.9, T_transfer = a 0.3, T_accelerator = a 0.05: a = 0.9 / (0.9 + 0.3)
    seconds, shares = balance([DeviceSeconds(0, 0.9), DeviceSeconds(0, 0.05, 0, 0.3)], [inf, 0.0])
    assert shares == pytest.approx((0.25, 0.75))
    assert seconds == pytest.approx(0.25 * 0.9)


def test_hetegen_with_a_resident_share():
    # half of the group held: the accelerator's share y takes max(0.05 y, 0.3 (y - 0.5)) = 0.9 (1 - y)
    seconds, shares = balance([DeviceSeconds(0, 0.9), DeviceSeconds(0, 0.05, 0, 0.3)], [inf, 0.5])
    assert shares == pytest.approx((1 - 1.05 / 1.2, 1.05 / 1.2))
    assert seconds == pytest.approx(0.9 * (1 - 1.05 / 1.2))


def test_a_lane_whose_fixed_costs_are_too_high_gets_nothing():
    assert balance([DeviceSeconds(0, 0.1), DeviceSeconds(0.2, 0.001)], [inf, inf]) == (pytest.approx(0.1), (1.0, 0.0))


def test_lanes_that_cannot_hold_the_group_never_manage_it():
    assert balance([DeviceSeconds(inf, 0.0), DeviceSeconds(0, 0.1)], [inf, 0.4]) is None


@given(st.lists(st.tuples(LANES, st.floats(0, 1.2) | st.just(inf)), min_size=1, max_size=4))
@settings(max_examples=300, deadline=None)
def test_the_balance_is_where_all_lanes_together_manage_the_group(drawn):
    lanes, held = [lane for lane, _ in drawn], [most for _, most in drawn]

    def managed(seconds: float) -> float:
        return sum(lane.share(seconds, most) for lane, most in drawn)

    found = balance(lanes, held)
    if found is None:
        assert managed(1e6) < 1 + 1e-9
        return
    low, high = 0.0, 1e3
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (low, middle) if managed(middle) >= 1 else (middle, high)
    seconds, shares = found
    assert seconds == pytest.approx(high, rel=1e-6, abs=1e-9)
    assert sum(shares) == pytest.approx(1)
    for lane, most, share in zip(lanes, held, shares, strict=True):
        own = min(most, share) if share > most + NOISE else share
        assert lane.seconds(own, share - own) <= seconds * (1 + 1e-6) + 1e-9
