"""What passes read and take where weights come from disk, against the planner's own plan of the same machine."""

from __future__ import annotations

from dataclasses import replace

import pytest

from edgeinfer.scheduling.cost.seconds import Pass, Spent
from edgeinfer.scheduling.cost.work import ModelWork
from edgeinfer.scheduling.machine.profile import Curve, Disk
from edgeinfer.scheduling.offload.streaming import Streamed, beside_reading, streamed_model
from edgeinfer.scheduling.offload.weight_placement import ExpertLoads, WeightPiece, WeightPlacement, place_weights
from edgeinfer.scheduling.placement.budgets import Budgets, Caching
from edgeinfer.scheduling.placement.machine_plan import PlanningTask
from edgeinfer.scheduling.placement.placement import all_on
from edgeinfer.scheduling.placement.planner import plan
from edgeinfer.scheduling.placement.step_time import PassTime, step_time
from tests.unit.scheduling.models import model
from tests.unit.scheduling.profiles import machine


def test_requests_take_what_a_disk_gives_at_their_size_and_number() -> None:
    disk = Disk({1: Curve((4096, 1 << 20), (1e8, 5e8)), 4: Curve((4096, 1 << 20), (3e8, 2e9)), 8: Curve.level(4e9)})
    assert disk.bytes_s(4096, 1) == 1e8
    assert disk.bytes_s(1 << 30, 4) == disk.bytes_s(1 << 20, 7) == 2e9
    assert Disk({4: Curve.level(2e9)}).bytes_s(1, 1) == 2e9  # nobody measured fewer
    read = Streamed({4096: 10, 1 << 20: 2.5}, 5)
    assert read.nbytes == 40960 + 2.5 * (1 << 20)
    assert read.seconds(disk) == pytest.approx(40960 / 3e8 + 2.5 * (1 << 20) / 2e9)


def test_what_stays_and_what_is_read_are_all_there_is() -> None:
    loads = [WeightPiece(100), WeightPiece(200), WeightPiece(100, 0.5), WeightPiece(300)]
    found = streamed_model(dict(enumerate(loads)), WeightPlacement(frozenset({1}), 900, 4, 450.0))
    assert (found.total_bytes, found.pinned_bytes, found.held_bytes) == (700, 200, 1100)
    assert found.streamed.requests == {100: 1.5, 300: 1}
    assert found.flash_bytes == 450
    assert found.streamed.n_flying == 2  # of 900 bytes, 300 are computed with


def test_experts_are_read_as_far_as_they_are_wanted_and_not_held() -> None:
    experts = ExpertLoads(count=4 * 16, nbytes=1000, used=4 * 2, active=2)  # 4 layers of 16, of which a token has 2
    found = streamed_model({3: WeightPiece(500)}, WeightPlacement(frozenset({3}), 0, 4, 0.0, 16), experts)
    assert (found.total_bytes, found.pinned_bytes, found.cache_bytes) == (64_500, 500, 16_000)
    assert found.held_bytes == 16_500
    assert found.streamed.nbytes == pytest.approx(8 * 0.75 * 1000)
    disk = Disk({4: Curve.level(1e6)})
    assert found.streamed.seconds(disk) == pytest.approx(6e-3)
    assert found.streamed.seconds(disk, 2) == pytest.approx(0.75 * 64 * (1 - (14 / 16) ** 2) * 1e-3)
    assert found.streamed.seconds(disk, 10_000) == pytest.approx(48e-3)


@pytest.mark.parametrize(("disk_s", "seconds", "bound"), [(0.5, 1.0, "arithmetic"), (3.0, 3.0, "disk")])
def test_a_pass_takes_as_long_as_the_slower_of_disk_and_cores(disk_s: float, seconds: float, bound: str) -> None:
    found = beside_reading(PassTime((), 0.0, Spent(memory=0.4, arithmetic=0.6), 1.0), disk_s)
    assert (found.seconds, found.spent.total, found.bound_by) == (seconds, seconds, bound)


def pieces(work: ModelWork, n_bytes: int) -> list[WeightPiece]:
    """The weights of a model in pieces of about that size."""
    sizes = [int(product.n_bytes) for stage in work.stages for product in stage.shape.products]
    return [WeightPiece(max(1, size // n)) for size in sizes for n in [-(-size // n_bytes)] for _ in range(n)]


@pytest.mark.parametrize("share", [0.75, 0.5, 0.25])
@pytest.mark.parametrize("disk_bytes_s", [1e8, 1e9, 1e12])
def test_the_planner_reads_as_much_within_a_window_and_takes_as_long(share: float, disk_bytes_s: float) -> None:
    work, caching, step = model(8), Caching(64), Pass(1, 32)
    profile = replace(machine(), disk=Disk({4: Curve.level(disk_bytes_s)}))
    loads = pieces(work, 8192)
    total = sum(load.nbytes for load in loads)
    kept = streamed_model(dict(enumerate(loads)), place_weights(loads, int(share * total), profile.disk, "it"))
    task = PlanningTask(profile, work, step, caching, Budgets(1e12, ram_weight_bytes=share * total))
    placed = plan(task)
    assert placed.usage.ram_weight_bytes <= share * total + 1
    rounding = 0.02 * total  # the planner moves rows in granules
    assert -rounding <= kept.flash_bytes - placed.usage.flash_bytes <= kept.window_bytes + rounding
    assert profile.disk is not None
    own = beside_reading(step_time(profile, work, all_on(work, "cpu"), step), kept.streamed.seconds(profile.disk))
    assert (own.bound_by == "disk") == (placed.time.bound_by == "disk")
    assert placed.seconds == pytest.approx(own.seconds, rel=0.1 if own.bound_by == "disk" else 0.01)


def test_memory_for_weights_is_apart_from_that_for_caches() -> None:
    work, caching = model(4), Caching(4096)
    profile = replace(machine(), disk=Disk({1: Curve.level(1e9)}))
    whole = plan(PlanningTask(profile, work, Pass(1), caching, Budgets(1e12)))
    assert whole.usage.ram_weight_bytes == pytest.approx(work.weight_bytes)
    assert whole.usage.ram_bytes > whole.usage.ram_weight_bytes
    half = plan(PlanningTask(profile, work, Pass(1), caching, Budgets(1e12, ram_weight_bytes=work.weight_bytes / 2)))
    assert half.usage.ram_weight_bytes <= work.weight_bytes / 2 + 1
    assert half.usage.ram_bytes - half.usage.ram_weight_bytes == pytest.approx(
        whole.usage.ram_bytes - whole.usage.ram_weight_bytes
    )
