"""Seconds of a placed pass: whole models on one device, lanes reckoned by hand, bounds."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgeinfer.scheduling.cost.seconds import DeviceCost, Pass
from edgeinfer.scheduling.cost.work import MatMulWork, ModelWork, StageShape, StageWork
from edgeinfer.scheduling.machine.profile import Link
from edgeinfer.scheduling.placement.placement import Placement, RowRange, StagePlacement
from edgeinfer.scheduling.placement.step_time import bytes_read, product_groups, step_time
from tests.unit.scheduling.placement.instances import random_placement, small_task
from tests.unit.scheduling.placement.models import layer
from tests.unit.scheduling.profiles import GB, device, machine

WIDTH, ROWS = 1000, 4000


def one_product(*parts: RowRange, home: str = "cpu") -> tuple[ModelWork, Placement]:
    """A model of one stage with one matrix of float16."""
    shape = StageShape((MatMulWork("only", "F16", 2.0, ROWS, WIDTH),), None, 0, 1)
    placed = StagePlacement(home, (parts,), None)
    return ModelWork("one", (StageWork("one", shape, ("only.weight",)),), WIDTH), Placement((placed,))


def test_groups_are_products_that_read_the_same_value():
    assert product_groups(layer(1024, 2048, 8, 8)) == ((0, 3), (3, 4), (4, 6), (6, 7))


@given(st.integers(0, 10_000), st.integers(1, 40))
@settings(max_examples=40, deadline=None)
def test_whole_on_one_device_takes_what_the_device_takes(seed, n_tokens):
    task = small_task(seed)
    step = Pass(n_tokens, 100, 1, 2)
    for rates in task.profile.devices:
        stages = tuple(
            StagePlacement(rates.name, tuple((RowRange(rates.name, 0, p.n_rows),) for p in stage.shape.products), None)
            for stage in task.work.stages
        )
        placement = Placement(stages)
        read = bytes_read(task.work, placement, step)[rates.name]
        expected = DeviceCost(rates, read).model(task.work, step).total
        assert step_time(task.profile, task.work, placement, step).seconds == pytest.approx(expected)


def test_a_lane_away_from_home_gets_its_input_and_sends_its_rows():
    profile = machine(device("gpu", read=100 * GB, madds=1e15, link=Link(8 * GB, 4 * GB, 1e-3)))
    work, placement = one_product(RowRange("cpu", 0, 1000), RowRange("gpu", 1000, ROWS))
    [group] = step_time(profile, work, placement, Pass(2)).stages[0].groups
    cpu, gpu = group.lanes
    assert cpu.seconds == pytest.approx(1000 * WIDTH * 2 / (10 * GB))
    assert gpu.input_s == pytest.approx(1e-3 + 2 * WIDTH * 4 / (8 * GB))
    assert gpu.result_s == pytest.approx(1e-3 + 2 * 3000 * 4 / (4 * GB))
    assert gpu.compute_s == pytest.approx(3000 * WIDTH * 2 / (100 * GB))
    assert group.seconds == max(cpu.seconds, gpu.seconds)


def test_messages_that_keep_the_cpu_busy_delay_its_own_rows():
    link = Link(8 * GB, 8 * GB, 1e-3, 4e-4)
    profile = machine(replace(device("gpu", read=100 * GB, madds=1e15, link=link), pass_s=1.0))
    work, placement = one_product(RowRange("cpu", 0, 1000), RowRange("gpu", 1000, ROWS))
    time = step_time(profile, work, placement, Pass(2))
    [group] = time.stages[0].groups
    cpu, gpu = group.lanes
    moved = 2 * (WIDTH + 3000) * 4 / (8 * GB)
    assert cpu.seconds == pytest.approx(2 * 4e-4 + moved + 1000 * WIDTH * 2 / (10 * GB))
    assert gpu.seconds == pytest.approx(2 * 1e-3 + moved + 3000 * WIDTH * 2 / (100 * GB))
    assert time.fixed_s == 0.0  # no stage has its home there, and the messages were measured with all they take
    at_home = Placement((replace(placement.stages[0], home="gpu"),))
    assert step_time(profile, work, at_home, Pass(2)).fixed_s == 1.0


def test_streaming_and_reading_from_disk_run_beside_computing():
    profile = machine(device("gpu", read=100 * GB, madds=1e15, link=Link(8 * GB, 4 * GB, 0)))
    work, placement = one_product(RowRange("gpu", 0, 3000, "streamed"), RowRange("gpu", 3000, ROWS), home="gpu")
    [group] = step_time(profile, work, placement, Pass(1)).stages[0].groups
    assert group.seconds == pytest.approx(3000 * WIDTH * 2 / (8 * GB))
    assert step_time(profile, work, placement, Pass(1)).bound_by == "link"
    work, placement = one_product(RowRange("cpu", 0, 3000), RowRange("cpu", 3000, ROWS, "flash"))
    with pytest.raises(ValueError, match="disk"):
        step_time(profile, work, placement, Pass(1))


def test_the_residual_moves_where_the_home_changes():
    profile = machine(device("gpu", link=Link(8 * GB, 4 * GB, 1e-3)))
    empty = StageWork("empty", StageShape((), None, 0, 0), ())
    work = ModelWork("moves", (empty, empty, empty), WIDTH)
    stages = tuple(StagePlacement(home, (), None) for home in ("cpu", "gpu", "cpu"))
    time = step_time(profile, work, Placement(stages), Pass(5))
    there, back = 1e-3 + 5 * WIDTH * 4 / (8 * GB), 1e-3 + 5 * WIDTH * 4 / (4 * GB)
    assert [stage.move_s for stage in time.stages] == pytest.approx([0, there, back])


@given(st.integers(0, 10_000), st.integers(1, 64))
@settings(max_examples=60, deadline=None)
def test_no_placement_takes_less_than_its_bounds(seed, n_tokens):
    task = small_task(seed)
    placement = random_placement(seed, task)
    step = Pass(n_tokens, 50, 1, 2)
    time = step_time(task.profile, task.work, placement, step)
    assert time.spent.total == pytest.approx(time.seconds)
    assert time.seconds == pytest.approx(time.fixed_s + sum(stage.seconds for stage in time.stages))
    streamed = flash = 0.0
    for stage, placed in zip(task.work.stages, placement.stages, strict=True):
        for product, parts in zip(stage.shape.products, placed.products, strict=True):
            for part in parts:
                n_bytes = part.n_rows * product.columns * product.bytes_per_weight
                rates = task.profile.device(part.device)
                assert time.seconds >= n_bytes / max(rates.read.values) * (1 - 1e-9)
                flash += n_bytes if part.held == "flash" else 0
                if part.held == "streamed":
                    assert rates.link is not None
                    streamed += n_bytes / rates.link.to_device_bytes_s
    assert time.seconds >= streamed / max(1, len(task.profile.accelerators)) * (1 - 1e-9)
    if task.profile.disk is not None:
        assert time.seconds >= flash / task.profile.disk.best_bytes_s * (1 - 1e-9)
