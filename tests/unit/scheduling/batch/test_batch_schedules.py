"""Batch schedules: closed forms by hand, against the simulated passes, and the choice against an exhaustive search."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgeinfer.scheduling.batch.costs import BatchCosts, SequenceGroup
from edgeinfer.scheduling.batch.schedules import (
    SCHEDULES,
    accelerator_only,
    asymmetric,
    asymmetric_s,
    choose,
    overlap,
)
from edgeinfer.scheduling.batch.simulation import run_accelerator_only, run_asymmetric, run_overlap
from edgeinfer.scheduling.cost.work import ModelWork
from edgeinfer.scheduling.machine.catalogue import machine_profile
from edgeinfer.scheduling.machine.profile import Link
from tests.unit.scheduling.models import model
from tests.unit.scheduling.profiles import GB, device, machine

WORK = model(8)
HEADLESS = ModelWork("headless", WORK.stages[:-1], WORK.width)
LAYER_BYTES = WORK.stages[0].shape.weight_bytes
CACHED_BYTES = 2 * 64 * 2
"""Of a cached token in one layer of `models.model`: a key and a value of one head, in f16."""


def _costs(cpu_read: float = 10 * GB, link: Link | None = None, work: ModelWork = HEADLESS) -> BatchCosts:
    """A machine where only reading memory takes time."""
    free = link or Link(1e30, 1e30, 0.0)
    return BatchCosts(machine(device("gpu", 100 * GB, 1e18, free), cpu=device(read=cpu_read, madds=1e18)), work)


COSTS = _costs()
GROUPS = st.tuples(st.integers(1, 12), st.integers(0, 4000)).map(lambda pair: SequenceGroup(pair[0], pair[0] * pair[1]))


def test_accelerator_only_reads_weights_and_cache_once():
    resident = SequenceGroup(5, 5 * 1000)
    expected = 8 * (LAYER_BYTES + 5 * 1001 * CACHED_BYTES) / (100 * GB)
    assert accelerator_only(COSTS, resident).seconds == pytest.approx(expected, rel=1e-6)
    assert run_accelerator_only(COSTS, resident).seconds == pytest.approx(expected, rel=1e-6)


def test_asymmetric_reads_weights_twice_and_hides_the_shorter_side():
    resident = SequenceGroup(2, 2 * 500)
    first = (LAYER_BYTES + 2 * 501 * CACHED_BYTES) / (100 * GB)
    second = LAYER_BYTES / (100 * GB)
    for n_cached in (1, 4000):
        attended = 3 * (n_cached + 1) * CACHED_BYTES / (10 * GB)
        expected = 8 * (max(first, attended) + second)
        assert asymmetric_s(COSTS, resident, SequenceGroup(3, 3 * n_cached), 3) == pytest.approx(expected, rel=1e-6)


def test_overlap_reads_weights_once_and_moves_the_offloaded_one_layer_a_pass():
    resident, offloaded = SequenceGroup(2, 2 * 500), SequenceGroup(8, 8 * 10)
    expected = accelerator_only(COSTS, resident)
    found = overlap(COSTS, resident, offloaded)
    assert found.seconds == pytest.approx(expected.seconds, rel=1e-6)
    assert found.tokens == pytest.approx(2 + 8 / 9)


def test_overlap_is_bound_by_what_the_cpu_reads():
    resident, offloaded = SequenceGroup(1, 10), SequenceGroup(16, 16 * 100_000)
    found = overlap(COSTS, resident, offloaded)
    attended_s = 8 * 100_001 * CACHED_BYTES / (10 * GB)
    assert found.offloaded_tokens / found.seconds == pytest.approx(1 / attended_s, rel=1e-6)


@settings(max_examples=40, deadline=None)
@given(GROUPS, GROUPS)
def test_two_halves_on_the_clock_take_what_is_predicted(resident: SequenceGroup, offloaded: SequenceGroup):
    predicted = asymmetric_s(COSTS, resident, offloaded, offloaded.n)
    simulated = run_asymmetric(COSTS, resident, offloaded, offloaded.n, n_passes=6)
    assert simulated.seconds == pytest.approx(predicted, rel=1e-6)
    assert simulated.tokens == resident.n + offloaded.n


@settings(max_examples=30, deadline=None)
@given(GROUPS, st.integers(1, 27), st.integers(1, 200))
def test_overlap_on_the_clock_makes_what_is_predicted(resident: SequenceGroup, n: int, n_cached: int):
    """Groups of equal size: where the CPU keeps up all move on in every pass, and every ninth pass makes a token."""
    n = n if n <= 9 else n // 9 * 9
    offloaded = SequenceGroup(n, n * n_cached)
    predicted = overlap(COSTS, resident, offloaded)
    simulated = run_overlap(COSTS, resident, offloaded, n_passes=36)
    assert simulated.tokens <= resident.n + n / 9 + 1e-9
    assert simulated.seconds == pytest.approx(predicted.seconds, rel=1e-3)
    if predicted.offloaded_tokens > 0.99 * n / 9 and n_cached < 100:
        assert simulated.tokens == pytest.approx(predicted.tokens)


@pytest.mark.parametrize("n_cached", [2_000, 5_000])
def test_overlap_on_the_clock_with_a_busy_cpu(n_cached: int):
    resident, offloaded = SequenceGroup(2, 2000), SequenceGroup(16, 16 * n_cached)
    predicted = overlap(COSTS, resident, offloaded)
    simulated = run_overlap(COSTS, resident, offloaded, n_passes=1600)
    assert predicted.offloaded_tokens < 16 / 9
    assert simulated.tokens - 2 == pytest.approx(predicted.offloaded_tokens, rel=0.06)
    assert simulated.cpu_share > 0.95


@settings(max_examples=25, deadline=None)
@given(GROUPS, GROUPS, st.floats(1e9, 2e11), st.floats(0, 1e-5))
def test_the_number_of_offloaded_is_as_good_as_any(
    resident: SequenceGroup, offloaded: SequenceGroup, cpu_read: float, latency: float
):
    costs = _costs(cpu_read, Link(10 * GB, 10 * GB, latency), WORK)
    found = asymmetric(costs, resident, offloaded)
    best = accelerator_only(costs, resident).tok_s
    for n in range(1, offloaded.n + 1):
        for behind in range(n + 1):
            seconds = asymmetric_s(costs, resident, offloaded.part(n), behind)
            best = max(best, (resident.n + n) / seconds)
    assert found.tok_s <= best * (1 + 1e-9)
    assert found.tok_s >= 0.93 * best


@settings(max_examples=40, deadline=None)
@given(GROUPS, GROUPS, st.floats(1e9, 2e11))
def test_the_choice_is_never_slower_than_any_schedule(
    resident: SequenceGroup, offloaded: SequenceGroup, cpu_read: float
):
    costs = _costs(cpu_read)
    chosen = choose(costs, resident, offloaded)
    for each in SCHEDULES:
        assert chosen.tok_s >= choose(costs, resident, offloaded, (each,)).tok_s
    assert chosen.tok_s >= accelerator_only(costs, resident).tok_s


def test_nothing_offloaded_means_accelerator_only():
    assert choose(COSTS, SequenceGroup(3, 300), SequenceGroup(0, 0)).schedule == "accelerator-only"


def test_each_hybrid_schedule_is_chosen_somewhere():
    """Few residents and short waits favour two halves; many residents, whose weights would be read twice, overlap."""
    fast_cpu = _costs(100 * GB)
    assert choose(fast_cpu, SequenceGroup(1, 100), SequenceGroup(8, 800)).schedule == "asymmetric"
    assert choose(fast_cpu, SequenceGroup(64, 64 * 10), SequenceGroup(8, 800)).schedule == "overlap"


def test_messages_count_and_a_shared_memory_has_none():
    link = Link(1 * GB, 2 * GB, 1e-3)
    leaving, back = _costs(link=link).messages_s(3)
    assert leaving == pytest.approx(1e-3 + 3 * (256 + 2 * 64) * 4 / (2 * GB))
    assert back == pytest.approx(1e-3 + 3 * 256 * 4 / GB)
    shared = machine(device("igpu", 50 * GB), cpu=device())
    assert BatchCosts(shared, WORK).messages_s(3) == (0.0, 0.0)
    assert BatchCosts(shared, WORK).move_s(100) == 0.0


def test_memory_limits_how_many_tokens_are_cached():
    small = replace(device("gpu", 100 * GB, 1e18, Link(1e30, 1e30, 0.0)), memory_bytes=2 * 10**9)
    costs = BatchCosts(machine(small), WORK)
    assert costs.device_tokens == int((2e9 - WORK.weight_bytes - 1e9) / (8 * CACHED_BYTES))
    tiny = replace(small, memory_bytes=10**9)
    assert BatchCosts(machine(tiny), WORK).device_tokens == 0


def test_a_machine_without_an_accelerator_is_refused():
    with pytest.raises(ValueError, match="no accelerator"):
        BatchCosts(machine_profile("cloud-2core"), WORK)
