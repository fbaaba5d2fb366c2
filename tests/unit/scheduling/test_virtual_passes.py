"""Simulated passes against closed forms: one device, a fixed split, streaming, and `step_time` for any placement."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgeinfer.scheduling.cost.seconds import DeviceCost, Pass
from edgeinfer.scheduling.cost.work import ModelWork
from edgeinfer.scheduling.machine.profile import Curve, Disk, Link
from edgeinfer.scheduling.placement.budgets import Budgets, Caching
from edgeinfer.scheduling.placement.placement import Held, Placement
from edgeinfer.scheduling.placement.planner import PlanningTask, plan
from edgeinfer.scheduling.placement.step_time import bytes_read, step_time
from edgeinfer.scheduling.virtual_clock import Clock
from edgeinfer.scheduling.virtual_passes import (
    SimulatedPasses,
    VirtualExecutor,
    WeightBuffer,
    inward,
    outward,
    pass_seconds,
)
from tests.unit.scheduling.models import model, split
from tests.unit.scheduling.profiles import GB, device, machine

WORK = model()
ONE = Pass(1, 100)
FAST = device("gpu", 100 * GB, 1e12, Link(8 * GB, 8 * GB, 1e-5))
PLACED = st.tuples(
    st.sampled_from(["cpu", "gpu", "npu"]),
    st.dictionaries(st.sampled_from(["cpu", "gpu", "npu"]), st.floats(0.01, 1), min_size=1),
    st.sampled_from(["own", "streamed", "flash"]),
    st.sampled_from(["cpu", "gpu", "npu"]),
)
LINKS = st.builds(Link, st.floats(1e7, 1e11), st.floats(1e7, 1e11), st.floats(0, 1e-3))
DEEP = model(6)
STEP = Pass(1, 64)
PROFILE = machine(device("gpu", 20 * GB, 1e12, Link(8 * GB, 8 * GB, 1e-7)), cpu=device(read=20 * GB, madds=1e12))


def _first_pass_s(profile, placement: Placement, step: Pass = ONE, work: ModelWork = WORK) -> float:
    executor = VirtualExecutor(profile, work)
    return executor.wait(executor.submit(placement, step)).seconds


@pytest.mark.parametrize("step", [ONE, Pass(64, 0), Pass(1, 7, n_sequences=8)])
def test_one_device_takes_the_sum_of_its_stages(step: Pass):
    slow = replace(device(), op_s=3e-6, pass_s=1e-5, token_s=1e-6)
    profile = machine(cpu=slow)
    placement = split(WORK, "cpu", {"cpu": 1})
    expected = DeviceCost(slow, bytes_read(WORK, placement, step)["cpu"]).model(WORK, step).total
    assert _first_pass_s(profile, placement, step) == pytest.approx(expected, rel=1e-9)
    assert pass_seconds(profile, WORK, placement, step) == pytest.approx(expected, rel=1e-9)


def test_two_devices_with_a_fixed_split():
    """Memory-bound products, free messages, no other ops: the slower half of every group decides."""
    free = Link(1e30, 1e30, 0.0)
    profile = machine(device("gpu", 30 * GB, 1e15, free), cpu=device(read=10 * GB, madds=1e15))
    n_bytes = WORK.weight_bytes
    for share in (0.0, 0.25, 0.5, 1.0):
        placement = split(WORK, "cpu", {"cpu": 1 - share, "gpu": share})
        cpu, gpu = (bytes_read(WORK, placement, Pass(1, 0)).get(name, 0.0) for name in ("cpu", "gpu"))
        heads = sum(stage.shape.attention.kv_bytes_per_token() for stage in WORK.stages if stage.shape.attention)
        expected = max((cpu - heads) / (10 * GB), gpu / (30 * GB)) + heads / (10 * GB)
        assert cpu + gpu == pytest.approx(n_bytes + heads)
        assert _first_pass_s(profile, placement, Pass(1, 0)) == pytest.approx(expected, rel=1e-6)


def test_streaming_is_bound_by_the_link():
    """Once the buffer is full, a pass whose rows all come over the link takes their bytes over its rate."""
    link = Link(1 * GB, 1 * GB, 0.0)
    profile = machine(device("gpu", 100 * GB, 1e15, link))
    placement = split(WORK, "gpu", {"cpu": 0.0, "gpu": 1.0}, held="streamed")
    assert pass_seconds(profile, WORK, placement, ONE, n_passes=6) == pytest.approx(WORK.weight_bytes / GB, rel=1e-6)


def test_streaming_ahead_hides_what_a_pass_does_without_the_link():
    """Attention keeps the device busy while the link is idle in the closed form; ahead of time it is not."""
    slow_attention = replace(FAST, attention=(replace(FAST.attention[0], rate=Curve.level(1e8)),))
    profile = machine(slow_attention)
    placement = split(WORK, "gpu", {"cpu": 0.0, "gpu": 1.0}, held="streamed")
    closed = step_time(profile, WORK, placement, ONE).seconds
    busy = WORK.weight_bytes / (8 * GB)
    no_buffer = pass_seconds(profile, WORK, placement, ONE, ahead_bytes=0)
    ahead = pass_seconds(profile, WORK, placement, ONE)
    assert busy <= ahead < no_buffer <= closed * (1 + 1e-9)


@settings(max_examples=30, deadline=None)
@given(st.lists(PLACED, min_size=4, max_size=4), LINKS, LINKS, st.integers(1, 40), st.integers(0, 200))
def test_any_placement_takes_at_most_what_step_time_says_and_its_messages(
    stages: list[tuple[str, dict[str, float], Held, str]], one: Link, other: Link, n_tokens: int, n_cached: int
):
    gpu, npu = device("gpu", 100 * GB, 1e12, one), device("npu", 30 * GB, 1e11, other)
    profile = replace(machine(gpu, npu), disk=Disk({4: Curve.level(2 * GB)}))
    placement = Placement(
        tuple(
            split(WORK, home, lanes, held, attention).stages[number]
            for number, (home, lanes, held, attention) in enumerate(stages)
        )
    )
    step = Pass(n_tokens, n_cached)
    clock = Clock()
    lowering = SimulatedPasses(clock, profile, WORK)
    ends = lowering.submit(placement, step)
    spans = clock.timeline.spans
    closed = step_time(profile, WORK, placement, step).seconds
    messages = sum(span.task.seconds for span in spans if span.task.name == "message")
    assert clock.timeline.makespan <= (closed + messages) * (1 + 1e-9)
    assert clock.timeline.makespan == max(spans[number].end for number in ends)
    again = lowering.submit(placement, step)
    second = max(clock.span(number).end for number in again) - max(spans[number].end for number in ends)
    assert second <= (closed + messages) * (1 + 1e-9)


def test_a_pass_is_never_below_what_its_busiest_resource_does():
    profile = machine(FAST)
    placement = split(WORK, "gpu", {"gpu": 0.6, "cpu": 0.4}, attention="cpu")
    executor = VirtualExecutor(profile, WORK)
    report = executor.wait(executor.submit(placement, Pass(8, 50)))
    resources = {resource for resource, _ in report.spent_s}
    assert {"cpu", "gpu", inward("gpu"), outward("gpu")} == resources
    assert report.seconds >= max(report.busy_s(resource) for resource in resources) > 0


def test_a_slow_device_shows_in_the_report():
    placement = split(WORK, "cpu", {"cpu": 1})
    plain = VirtualExecutor(machine(), WORK)
    slow = VirtualExecutor(machine(), WORK, slowness={"cpu": 1.5})
    reports = [executor.wait(executor.submit(placement, ONE)) for executor in (plain, slow)]
    assert reports[1].seconds == pytest.approx(1.5 * reports[0].seconds)
    assert reports[1].busy_s("cpu") == pytest.approx(1.5 * reports[0].busy_s("cpu"))


def test_passes_wait_for_each_other_and_are_waited_for_once():
    executor = VirtualExecutor(machine(), WORK)
    placement = split(WORK, "cpu", {"cpu": 1})
    tickets = [executor.submit(placement, ONE) for _ in range(3)]
    reports = [executor.wait(ticket) for ticket in tickets]
    assert executor.seconds == pytest.approx(sum(report.seconds for report in reports))
    assert reports[0].seconds == pytest.approx(reports[2].seconds)
    assert executor.timeline.makespan == pytest.approx(executor.seconds)
    with pytest.raises(KeyError):
        executor.wait(tickets[0])


def test_a_window_lets_in_what_has_room():
    window = WeightBuffer(10)
    assert window.enter(6) == ()
    window.hold(6, (1,))
    assert window.enter(4) == ()
    window.hold(4, (2,))
    assert window.enter(5) == (1,)
    window.hold(5, (3,))
    assert window.enter(50) == (2, 3)


def test_the_plan_takes_on_the_clock_what_was_predicted():
    found = plan(PlanningTask(PROFILE, DEEP, STEP, Caching(128), Budgets(1e12, {"gpu": 1e12})))
    seconds = {}
    for slowness in (1.0, 4.0):
        executor = VirtualExecutor(PROFILE, DEEP, slowness={"gpu": slowness})
        seconds[slowness] = executor.wait(executor.submit(found.placement, STEP)).seconds
    assert seconds[1.0] == pytest.approx(found.seconds, rel=0.02)
    assert seconds[4.0] > seconds[1.0] * 1.5
