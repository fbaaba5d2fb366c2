"""Baseline schedules by name: each places what it says, and none beats `auto`."""

from __future__ import annotations

from dataclasses import replace

import pytest

from edgeinfer.errors import DoesNotFit, UnknownKey
from edgeinfer.scheduling.placement.budgets import fits
from edgeinfer.scheduling.placement.machine_plan import MachinePlan
from edgeinfer.scheduling.placement.schedules import SCHEDULES, scheduled
from tests.unit.scheduling.placement.instances import small_task
from tests.unit.scheduling.placement.models import decoder, layer

SEEDS = range(200, 230)


def parts_of(found: MachinePlan):
    return [part for stage in found.placement.stages for parts in stage.products for part in parts]


def test_an_unknown_name_is_answered_with_those_there_are():
    with pytest.raises(UnknownKey, match="auto, cpu, accelerator, static, stream, rows, hetegen"):
        scheduled("apexx", small_task(0))
    assert all(schedule.summary for schedule in SCHEDULES.values())


@pytest.mark.parametrize("seed", SEEDS)
def test_schedules_place_what_they_say_and_auto_is_the_best(seed):
    task = small_task(seed)
    found: dict[str, MachinePlan] = {}
    for name in SCHEDULES:
        try:
            found[name] = scheduled(name, task)
        except DoesNotFit:
            continue
    for name, each in found.items():
        assert each.schedule == name
        assert fits(each.usage, task.budgets)
        assert found["auto"].seconds <= each.seconds
        for product_rows, parts in zip(
            (p.n_rows for stage in task.work.stages for p in stage.shape.products),
            (parts for stage in each.placement.stages for parts in stage.products),
            strict=True,
        ):
            assert sum(part.n_rows for part in parts) == product_rows
    if "cpu" in found:
        assert {part.device for part in parts_of(found["cpu"])} <= {"cpu"}
    if "accelerator" in found:
        assert all(part.device != "cpu" and part.held == "own" for part in parts_of(found["accelerator"]))
        assert found["static"].placement == found["accelerator"].placement
    if "stream" in found:
        assert all(part.device != "cpu" for part in parts_of(found["stream"]))
    if "static" in found:
        assert all(part.device == "cpu" or part.held == "own" for part in parts_of(found["static"]))


def test_hetegen_is_no_slower_than_streaming_or_whole_layers_where_both_share():
    task = small_task(3, 2)
    work = decoder([layer(1024, 2048, 16, 4)] * 8, 1024)
    total = work.weight_bytes
    ample = replace(task.budgets, ram_bytes=10 * total, vram_bytes={"accelerator1": total / 2})
    task = replace(task, work=work, budgets=ample, caching=replace(task.caching, n_context=64, n_sequences=1))
    streaming, hetegen = scheduled("stream", task), scheduled("hetegen", task)
    assert hetegen.seconds <= streaming.seconds
    assert streaming.usage.streamed_bytes > 0.3 * total
