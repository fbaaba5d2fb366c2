"""The planner against exhaustive search, and what every plan must keep to."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgeinfer.errors import DoesNotFit
from edgeinfer.scheduling.cost.seconds import Pass
from edgeinfer.scheduling.machine.profile import AttentionRates, Curve, DeviceRates, Disk, Link, ProductRates, Profile
from edgeinfer.scheduling.placement.budgets import Budgets, Caching, fits
from edgeinfer.scheduling.placement.machine_plan import MachinePlan, PlanningTask, decode_step
from edgeinfer.scheduling.placement.planner import plan
from tests.unit.scheduling.placement.exhaustive import best_seconds
from tests.unit.scheduling.placement.instances import small_task
from tests.unit.scheduling.placement.models import decoder, layer, of_70_billion
from tests.unit.scheduling.profiles import GB, device, machine

WORSE = 1.03


def planned(task: PlanningTask) -> MachinePlan | None:
    try:
        return plan(task)
    except DoesNotFit:
        return None


@pytest.mark.parametrize("seed", range(3000, 3060))
def test_nothing_on_the_grid_beats_the_plan_with_one_accelerator(seed):
    task = small_task(seed, 2)
    found = planned(task)
    assert best_seconds(task, found.seconds / WORSE if found else float("inf")) == float("inf")


@pytest.mark.parametrize("seed", range(2000, 2020))
def test_nothing_on_the_grid_beats_the_plan_with_two_accelerators(seed):
    task = small_task(seed, 3)
    found = planned(task)
    assert best_seconds(task, found.seconds / WORSE if found else float("inf")) == float("inf")


@given(st.integers(0, 100_000))
@settings(max_examples=40, deadline=None)
def test_a_plan_covers_every_row_once_and_exceeds_no_budget(seed):
    task = small_task(seed)
    found = planned(task)
    if found is None:
        return
    assert fits(found.usage, task.budgets)
    for stage, placed in zip(task.work.stages, found.placement.stages, strict=True):
        assert len(placed.products) == len(stage.shape.products)
        for product, parts in zip(stage.shape.products, placed.products, strict=True):
            rows = [row for part in parts for row in range(part.start, part.stop)]
            assert rows == list(range(product.n_rows))
    assert plan(task) == found


def test_a_machine_without_accelerators_runs_everything_on_the_cpu():
    work = decoder([layer(512, 1024, 8, 8)] * 3, 512)
    caching = Caching(512)
    found = plan(PlanningTask(machine(), work, decode_step(caching), caching, Budgets(1e12)))
    assert {stage.home for stage in found.placement.stages} == {"cpu"}
    assert found.usage.ram_bytes == pytest.approx(work.weight_bytes + work.kv_bytes_per_token() * 512)


def test_the_cpu_alone_comes_out_where_crossing_costs_more_than_it_saves():
    far = device("gpu", read=1000 * GB, madds=1e15, link=Link(8 * GB, 8 * GB, 0.5))
    far = replace(far, pass_s=1.0)
    work = decoder([layer(512, 1024, 8, 8)] * 3, 512)
    caching = Caching(512)
    found = plan(PlanningTask(machine(far), work, decode_step(caching), caching, Budgets(1e12, {"gpu": 1e12})))
    assert {stage.home for stage in found.placement.stages} == {"cpu"}
    assert not found.usage.vram_bytes


def test_memory_goes_first_to_what_saves_most_per_byte():
    # Matrices in 6 bits take as long as those in 2 bytes here: a byte of them held saves more.
    slow = ProductRates(0.82, Curve.level(1e9))
    fast = ProductRates(2.0, Curve.level(1e9))
    cpu = replace(device("cpu", read=1e15), products={"Q6_K": slow, "F16": fast})
    gpu = replace(cpu, name="gpu", products={"*": ProductRates(1.0, Curve.level(1e15))}, link=Link(2e8, 1e15, 0.0))
    work = decoder([layer(512, 512, 8, 8, "F16", "Q6_K")] * 4, 512)
    caching = Caching(1)
    room = 4 * 512 * 512 * 0.82
    found = plan(PlanningTask(Profile("m", (cpu, gpu)), work, Pass(1), caching, Budgets(1e12, {"gpu": room + 1e4})))
    held = {"F16": 0, "Q6_K": 0}
    for stage, placed in zip(work.stages, found.placement.stages, strict=True):
        for product, parts in zip(stage.shape.products, placed.products, strict=True):
            held[product.form] += sum(part.n_rows for part in parts if part.device == "gpu" and part.held == "own")
    assert held["Q6_K"] >= 0.95 * 4 * 512
    assert held["F16"] <= 0.05 * 4 * 512


def test_what_ram_does_not_hold_is_read_from_disk_beside_computing():
    task = replace(small_task(0, 2), budgets=Budgets(0.0))
    with pytest.raises(DoesNotFit):
        plan(task)
    work = decoder([layer(512, 1024, 8, 8)] * 3, 512)
    base = machine()
    fast_disk = replace(base, disk=_disk(1e12))
    caching = Caching(16)
    ample = plan(PlanningTask(base, work, Pass(1, 8), caching, Budgets(1e12)))
    short = Budgets(0.5 * work.weight_bytes)
    found = plan(PlanningTask(fast_disk, work, Pass(1, 8), caching, short))
    assert found.usage.flash_bytes > 0
    assert found.seconds == pytest.approx(ample.seconds, rel=1e-3)
    slow = plan(PlanningTask(replace(base, disk=_disk(1e9)), work, Pass(1, 8), caching, short))
    missing = work.weight_bytes + work.kv_bytes_per_token() * 16 - short.ram_bytes
    assert missing / 1e9 <= slow.seconds <= 1.1 * missing / 1e9 + 0.1 * ample.seconds
    assert slow.time.bound_by == "disk"


def test_a_refusal_says_what_would_fit():
    work = decoder([layer(512, 1024, 8, 8)] * 3, 512)
    caching = Caching(100_000)
    room = work.weight_bytes + work.kv_bytes_per_token() * 50_000
    with pytest.raises(DoesNotFit, match=r"too much; a context of 50000 tokens would fit") as refusal:
        plan(PlanningTask(machine(), work, decode_step(caching), caching, Budgets(room)))
    assert "307.2 MB too much" in str(refusal.value)
    smaller = replace(caching, n_context=49_000)
    plan(PlanningTask(machine(), work, decode_step(smaller), smaller, Budgets(room)))


@pytest.mark.parametrize(("n_sequences", "vram"), [(1, 24e9), (1, 8e9), (16, 24e9)])
def test_70_billion_weights_on_four_devices(n_sequences, vram):
    work, caching = of_70_billion(), Caching(8192, n_sequences)
    profile = Profile("four", (_cpu(), *(_gpu(f"gpu{n}", share) for n, share in enumerate((1.0, 0.7, 0.5)))))
    budgets = Budgets(100e9, {f"gpu{n}": vram for n in range(3)})
    task = PlanningTask(profile, work, decode_step(caching), caching, budgets)
    found = plan(task)
    assert fits(found.usage, budgets)
    read = sum(max(rates.read.values) for rates in profile.devices)
    assert found.seconds >= work.weight_bytes / read
    alone = plan(replace(task, profile=Profile("cpu", (_cpu(),))))
    assert found.seconds < alone.seconds / 3
    assert plan(task) == found


def _cpu() -> DeviceRates:
    rates = ProductRates(0.57, Curve((1, 64), (0.12e12, 1e12)))
    attention = (AttentionRates(128, Curve.level(1e11)),)
    return DeviceRates("cpu", "cpu", 1 << 37, Curve.level(60e9), {"*": rates}, attention, Curve.level(1e10), 2e-6, 1e-4)


def _gpu(name: str, share: float) -> DeviceRates:
    rates = ProductRates(0.57, Curve((1, 64), (1.7e12 * share, 2e13 * share)))
    attention = (AttentionRates(128, Curve.level(2e12)),)
    link = Link(24e9, 24e9, 8e-6)
    read, elements = Curve.level(900e9 * share), Curve.level(1e11)
    return DeviceRates(name, "gpu", 24 << 30, read, {"*": rates}, attention, elements, 5e-6, 1e-4, link=link)


def _disk(bytes_s: float) -> Disk:
    return Disk({1: Curve.level(bytes_s)})
