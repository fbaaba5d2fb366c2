"""Prompts may stream what decoding computes on the CPU; what is held stays where it is."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgeinfer.errors import DoesNotFit
from edgeinfer.scheduling.cost.seconds import Pass
from edgeinfer.scheduling.machine.profile import Link
from edgeinfer.scheduling.placement.budgets import Budgets, Caching, usage_of
from edgeinfer.scheduling.placement.machine_plan import PlanningTask, decode_step, prefill_placement
from edgeinfer.scheduling.placement.planner import plan
from edgeinfer.scheduling.placement.step_time import step_time
from tests.unit.scheduling.placement.instances import small_task
from tests.unit.scheduling.placement.models import decoder, layer
from tests.unit.scheduling.profiles import GB, device, machine

PROMPT = Pass(256, 0, 1)


@given(st.integers(0, 100_000))
@settings(max_examples=40, deadline=None)
def test_prompts_are_never_slower_than_with_the_placement_of_decoding(seed: int) -> None:
    task = small_task(seed)
    try:
        decode = plan(task).placement
    except DoesNotFit:
        return
    prefill = prefill_placement(task, decode, PROMPT)
    times = [step_time(task.profile, task.work, each, PROMPT, task.caching.kv).seconds for each in (prefill, decode)]
    assert times[0] <= times[1]
    before, after = (usage_of(task.work, each, task.caching) for each in (decode, prefill))
    assert (after.ram_bytes, after.flash_bytes) == pytest.approx((before.ram_bytes, before.flash_bytes))
    held = [{name: n_bytes for name, n_bytes in each.vram_bytes.items() if n_bytes} for each in (before, after)]
    assert held[1] == pytest.approx(held[0])
    for stage, placed in zip(task.work.stages, prefill.stages, strict=True):
        for product, parts in zip(stage.shape.products, placed.products, strict=True):
            assert [row for part in parts for row in range(part.start, part.stop)] == list(range(product.n_rows))


def test_a_slow_processor_beside_a_fast_accelerator_sends_what_it_holds() -> None:
    fast = replace(device("gpu", 1000 * GB, 1e13, Link(50 * GB, 50 * GB, 1e-6)), memory_bytes=1 << 30)
    work = decoder([layer(1024, 4096, 8, 2)] * 4, 1024)
    caching = Caching(512)
    task = PlanningTask(
        machine(fast), work, decode_step(caching), caching, Budgets(64 * GB, {"gpu": 0.3 * work.weight_bytes})
    )
    decode = plan(task).placement
    prefill = prefill_placement(task, decode, PROMPT)
    own = [part for stage in prefill.stages for parts in stage.products for part in parts if part.held == "own"]
    assert not any(part.device == "cpu" for part in own)
    streaming, as_decoding = (step_time(task.profile, work, each, PROMPT).seconds for each in (prefill, decode))
    assert streaming < 0.5 * as_decoding


def test_a_machine_without_accelerators_has_one_placement() -> None:
    work, caching = decoder([layer(256, 512, 4, 2)] * 2, 256), Caching(128)
    task = PlanningTask(machine(), work, decode_step(caching), caching, Budgets(64 * GB))
    decode = plan(task).placement
    assert prefill_placement(task, decode, PROMPT) is decode
