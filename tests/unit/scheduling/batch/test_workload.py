"""Workloads: all tokens are made, times by hand where there is room for everyone, and memory that runs out."""

from __future__ import annotations

from dataclasses import replace

import pytest

from edgeinfer.errors import DoesNotFit
from edgeinfer.scheduling.batch.costs import DEVICE_RESERVE_BYTES, BatchCosts, SequenceGroup
from edgeinfer.scheduling.batch.schedules import accelerator_only
from edgeinfer.scheduling.batch.simulation import Workload, run_workload
from edgeinfer.scheduling.machine.profile import Link
from tests.unit.scheduling.models import model
from tests.unit.scheduling.profiles import GB, device, machine

WORK = model(8)
ONLY = ("accelerator-only",)


def _costs(n_tokens: int, cpu_read: float = 20 * GB, host_bytes: int = 10**9) -> BatchCosts:
    """An accelerator with room for so many cached tokens."""
    room = int(WORK.weight_bytes + DEVICE_RESERVE_BYTES + n_tokens * WORK.kv_bytes_per_token()) + 1
    gpu = replace(device("gpu", 100 * GB, 1e12, Link(10 * GB, 10 * GB, 1e-6)), memory_bytes=room)
    cpu = replace(device(read=cpu_read, madds=1e12), memory_bytes=host_bytes)
    return BatchCosts(machine(gpu, cpu=cpu), WORK)


def test_with_room_for_all_the_time_is_the_sum_of_prompts_and_passes():
    costs = _costs(10_000)
    found = run_workload(costs, Workload(4, 100, 50), ONLY)
    passes = sum(accelerator_only(costs, SequenceGroup(4, 4 * (100 + made))).seconds for made in range(50))
    assert found.seconds == pytest.approx(4 * costs.prompt_s(100) + passes, rel=0.01)
    assert found.n_tokens == 200
    assert found.passes == {"accelerator-only": 50}
    assert found.n_evicted == 0


def test_with_room_for_one_the_sequences_follow_each_other():
    costs = _costs(150)
    found = run_workload(costs, Workload(3, 100, 50), ONLY)
    alone = run_workload(costs, Workload(1, 100, 50), ONLY)
    assert found.seconds == pytest.approx(3 * alone.seconds)
    assert found.mean_resident <= 1


def test_who_outgrows_the_room_gives_way_and_still_finishes():
    costs = _costs(400)
    found = run_workload(costs, Workload(6, 50, 100, reserved=0.0), ONLY)
    assert found.n_evicted > 0
    assert found.n_tokens == 600
    assert run_workload(costs, Workload(6, 50, 100), ONLY).n_evicted == 0


def test_hybrid_schedules_make_more_of_a_small_accelerator_and_a_fast_cpu():
    costs = _costs(320, cpu_read=100 * GB)
    load = Workload(24, 100, 200)
    only = run_workload(costs, load, ONLY)
    chosen = run_workload(costs, load)
    assert chosen.n_tokens == only.n_tokens
    assert chosen.tok_s > 1.2 * only.tok_s
    assert chosen.mean_offloaded > 1
    for schedule in ("asymmetric", "overlap"):
        assert run_workload(costs, load, (schedule,)).n_tokens == only.n_tokens


def test_without_memory_in_the_machine_hybrid_is_accelerator_only():
    costs = _costs(320, host_bytes=1)
    load = Workload(5, 100, 50)
    assert run_workload(costs, load).seconds == pytest.approx(run_workload(costs, load, ONLY).seconds)


def test_a_sequence_without_room_is_refused_with_the_numbers():
    with pytest.raises(DoesNotFit, match=r"room for 99 cached tokens .* a sequence has 150"):
        run_workload(_costs(99), Workload(1, 100, 50))
