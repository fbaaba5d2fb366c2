"""The governor: what each mode allows, that it never flaps, and that hotter never means more."""

from __future__ import annotations

from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeinfer.scheduling.machine.topology import CoreKind
from edgeinfer.scheduling.workers.governor import COOLED_C, CRITICAL_DUTY, Condition, Governor, PowerPolicy
from edgeinfer.settings import MOST_DRAFTED, Mode

MODES: tuple[Mode, ...] = get_args(Mode)
KINDS: tuple[CoreKind, ...] = get_args(CoreKind)
P4: tuple[CoreKind, ...] = ("performance",) * 4
LAPTOP: tuple[CoreKind, ...] = ("performance",) * 2 + ("efficiency",) * 4 + ("low-power",) * 2

modes = st.sampled_from(MODES)
workers = st.lists(st.sampled_from(KINDS), min_size=1, max_size=40)
celsius = st.floats(1, 125)
conditions = st.builds(
    Condition,
    plugged_in=st.none() | st.booleans(),
    battery_percent=st.none() | st.floats(0, 100),
    temperature_c=st.none() | celsius,
    high_c=st.none() | st.floats(50, 125),
    critical_c=st.none() | st.floats(50, 125),
)


def policy(mode: Mode, kinds: tuple[CoreKind, ...] = P4, **condition: object) -> PowerPolicy:
    """The first policy of a governor."""
    return Governor(mode, kinds).policy(Condition(**condition))  # type: ignore[arg-type]


def duties(mode: Mode, *celsius: float) -> list[float]:
    """Of one governor at one temperature after the other; high is 90 °C, critical 100."""
    governor = Governor(mode, P4)
    return [governor.policy(Condition(temperature_c=each, high_c=90, critical_c=100)).duty for each in celsius]


@given(modes, workers, st.lists(conditions, min_size=1))
def test_every_policy_can_be_followed(mode: Mode, kinds: list[CoreKind], history: list[Condition]) -> None:
    governor = Governor(mode, kinds)
    for condition in history:
        found = governor.policy(condition)
        assert 1 <= found.most_workers <= len(kinds)
        assert 0 < found.duty <= 1
        assert 1 <= found.most_drafted <= MOST_DRAFTED
        assert len(found.ranks) in (0, len(kinds))
        assert found.reason.startswith(f"{mode}: ")
        assert "\n" not in found.reason


@given(modes, workers, conditions, st.lists(st.tuples(celsius, st.floats(0, 60)), min_size=1))
def test_hotter_never_means_more(
    mode: Mode, kinds: list[CoreKind], condition: Condition, history: list[tuple[float, float]]
) -> None:
    """Two machines in all alike but the temperature: the hotter one, hotter all the time, is never used more."""
    cool, hot = Governor(mode, kinds), Governor(mode, kinds)
    limits = condition.plugged_in, condition.battery_percent
    for temperature, more in history:
        less_used = hot.policy(Condition(*limits, temperature + more, condition.high_c, condition.critical_c))
        more_used = cool.policy(Condition(*limits, temperature, condition.high_c, condition.critical_c))
        assert less_used.duty <= more_used.duty
        assert less_used.most_workers <= more_used.most_workers
        assert less_used.most_drafted <= more_used.most_drafted
        assert less_used.idle_work <= more_used.idle_work


@given(modes, st.floats(60, 105), st.lists(st.floats(0, 1), min_size=1))
def test_a_temperature_that_trembles_changes_nothing(mode: Mode, top: float, parts: list[float]) -> None:
    first, *others = duties(mode, top, *(top - part * COOLED_C for part in parts))
    assert set(others) == {first}


def test_max_uses_everything_until_it_is_critical() -> None:
    assert policy("max", temperature_c=99, high_c=90, critical_c=100) == PowerPolicy(
        4, (), 1.0, MOST_DRAFTED, True, "max: all cores"
    )
    assert policy("max", plugged_in=False, battery_percent=3) == policy("max")
    assert duties("max", 99.9, 100, 98, 96.9) == [1, CRITICAL_DUTY, CRITICAL_DUTY, 1]


def test_balanced_is_max_while_it_is_cool_and_plugged_in() -> None:
    for condition in ({}, {"plugged_in": True, "battery_percent": 5.0}, {"temperature_c": 70.0}):
        assert policy("balanced", **condition) == PowerPolicy(4, (), 1.0, MOST_DRAFTED, True, "balanced: all cores")


def test_balanced_computes_less_and_less_near_the_high_temperature() -> None:
    assert duties("balanced", 79, 82, 84, 86, 88, 90, 99, 100) == [1, 0.9, 0.8, 0.7, 0.6, 0.5, 0.5, CRITICAL_DUTY]
    assert duties("balanced", 90, 87.5, 80, 70) == [0.5, 0.5, 0.85, 1]
    found = policy("balanced", temperature_c=86, high_c=90, critical_c=100)
    assert found.reason == "balanced: all cores, computing 70 % of the time, CPU at 86 °C, high is 90 °C"
    assert not found.idle_work


@pytest.mark.parametrize(
    ("limits", "half_at_c"),
    [((None, None), 85), ((100, 100), 95), ((80, None), 80), ((None, 70), 65), ((105, None), 105)],
)
def test_limits_that_are_missing_or_alike_are_filled_in(
    limits: tuple[float | None, float | None], half_at_c: float
) -> None:
    high, critical = limits
    half, before = (
        policy("balanced", temperature_c=celsius, high_c=high, critical_c=critical).duty
        for celsius in (half_at_c, half_at_c - 2)
    )
    assert (half, before) == (0.5, 0.6)


def test_balanced_saves_a_low_battery_until_it_has_enough() -> None:
    governor = Governor("balanced", P4)
    saved = []
    for plugged_in, percent in [
        (False, 36),
        (False, 31),
        (False, 29),
        (False, 34),
        (False, 36),
        (False, 34),
        (True, 10),
    ]:
        found = governor.policy(Condition(plugged_in, percent))
        assert found.idle_work == plugged_in
        saved.append(found.most_workers == policy("battery").most_workers)
    assert saved == [False, False, True, True, False, False, False]
    low = policy("balanced", plugged_in=False, battery_percent=12)
    battery = policy("battery")
    assert (low.duty, low.most_drafted, low.ranks) == (battery.duty, battery.most_drafted, battery.ranks)
    assert low.reason == "balanced: 2 of 4 cores, battery at 12 %"
    assert policy("balanced", plugged_in=False).reason == "balanced: 2 of 4 cores, on battery"


def test_quiet_leaves_cores_and_time_and_eases_early() -> None:
    found = policy("quiet")
    assert (found.most_workers, found.duty, found.idle_work) == (2, 0.6, False)
    assert 1 < found.most_drafted < policy("battery").most_drafted < MOST_DRAFTED
    assert found.reason == "quiet: 2 of 4 cores, computing 60 % of the time"
    assert duties("quiet", 65, 70, 75, 80, 95, 100) == [0.6, 0.5, 0.4, 0.3, 0.3, CRITICAL_DUTY]


def test_battery_rests_only_where_it_is_hot() -> None:
    assert duties("battery", 70, 90, 100) == [1, 0.5, CRITICAL_DUTY]


@pytest.mark.parametrize("mode", ["quiet", "battery"])
@pytest.mark.parametrize(("n_cores", "most"), [(1, 1), (2, 1), (3, 1), (4, 2), (9, 4)])
def test_half_the_cores_are_at_least_one(mode: Mode, n_cores: int, most: int) -> None:
    assert policy(mode, ("performance",) * n_cores).most_workers == most


@pytest.mark.parametrize(("mode", "ranked"), [("max", False), ("balanced", False), ("quiet", True), ("battery", True)])
def test_efficient_cores_come_first_where_energy_counts(mode: Mode, ranked: bool) -> None:
    assert policy(mode, LAPTOP).ranks == ((2, 2, 0, 0, 0, 0, 1, 1) if ranked else ())
    assert policy(mode, P4).ranks == ()
