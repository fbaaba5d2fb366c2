"""The virtual clock against times that can be written down."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeinfer.scheduling.virtual_clock import Clock, ClockTask, run

SECONDS = st.floats(0, 100)


@given(st.lists(SECONDS, min_size=1))
def test_one_resource_takes_the_sum(seconds: list[float]):
    timeline = run([ClockTask("work", "cpu", each) for each in seconds])
    assert timeline.makespan == pytest.approx(sum(seconds))
    assert timeline.busy_s("cpu") == pytest.approx(sum(seconds))


@given(st.lists(SECONDS, min_size=1), st.lists(SECONDS, min_size=1))
def test_two_resources_take_the_longer_one(left: list[float], right: list[float]):
    timeline = run([ClockTask("l", "cpu", each) for each in left] + [ClockTask("r", "gpu", each) for each in right])
    assert timeline.makespan == pytest.approx(max(sum(left), sum(right)))


@given(st.integers(1, 8), st.integers(1, 12), st.floats(0.01, 10))
def test_a_pipeline_of_equal_stages(n_stages: int, n_items: int, seconds: float):
    tasks = []
    for item in range(n_items):
        for stage in range(n_stages):
            after = (item * n_stages + stage - 1,) if stage else ()
            tasks.append(ClockTask("item", f"stage {stage}", seconds, after))
    timeline = run(tasks)
    assert timeline.makespan == pytest.approx((n_stages + n_items - 1) * seconds)
    assert timeline.busy_share("stage 0") == pytest.approx(n_items / (n_stages + n_items - 1))


def test_a_chain_waits_for_latency_too():
    timeline = run(
        [ClockTask("a", "cpu", 2), ClockTask("b", "link", 3, (0,), latency_s=0.5), ClockTask("c", "cpu", 1, (1,))]
    )
    assert [(span.start, span.end) for span in timeline.spans] == [(0, 2), (2.5, 5.5), (5.5, 6.5)]
    assert timeline.resources == ("cpu", "link")


def test_what_yields_uses_gaps_and_makes_room():
    tasks = [
        ClockTask("late", "cpu", 2),
        ClockTask("message", "link", 1, (0,), yields=True),
        ClockTask("weights", "link", 4, yields=True),
    ]
    spans = run(tasks).spans
    assert (spans[1].start, spans[1].end) == (2, 3)
    assert (spans[2].start, spans[2].end) == (0, 5)  # two seconds before the message, two after it


def test_what_does_not_yield_keeps_its_turn():
    tasks = [ClockTask("late", "cpu", 2), ClockTask("first", "gpu", 1, (0,)), ClockTask("second", "gpu", 1)]
    assert [(span.start, span.end) for span in run(tasks).spans[1:]] == [(2, 3), (3, 4)]


PLANS = st.lists(
    st.tuples(st.sampled_from("abc"), st.integers(0, 9), st.sets(st.integers(1, 6)), st.booleans()), max_size=24
)


def _tasks(plan: list[tuple[str, int, set[int], bool]]) -> list[ClockTask]:
    return [
        ClockTask("t", resource, seconds, tuple(number - back for back in sorted(backs) if back <= number), 0, yields)
        for number, (resource, seconds, backs, yields) in enumerate(plan)
    ]


@given(PLANS)
def test_a_resource_does_one_thing_at_a_time_and_never_too_early(plan: list[tuple[str, int, set[int], bool]]):
    timeline = run(_tasks(plan))
    for span in timeline.spans:
        assert span.end - span.start >= span.task.seconds
        assert all(timeline.spans[number].end <= span.start for number in span.task.after)
    for resource in timeline.resources:
        own = [span for span in timeline.spans if span.task.resource == resource]
        first, last = min(span.start for span in own), max(span.end for span in own)
        assert timeline.busy_s(resource) <= last - first
        whole = sorted((span.start, span.end) for span in own if not span.task.yields and span.task.seconds)
        assert all(before[1] <= after[0] for before, after in pairwise(whole))


@given(PLANS)
def test_later_tasks_never_change_earlier_ones(plan: list[tuple[str, int, set[int], bool]]):
    tasks = _tasks(plan)
    spans = run(tasks).spans
    for count in range(len(tasks)):
        assert run(tasks[:count]).spans == spans[:count]


def test_submitting_later_starts_later():
    clock = Clock()
    first = clock.submit(ClockTask("a", "cpu", 2))
    assert clock.wait([first]) == 2
    assert clock.span(clock.submit(ClockTask("b", "gpu", 1))).start == 2
    assert clock.now == 2
    assert clock.n_tasks == 2


@pytest.mark.parametrize(
    "task",
    [
        ClockTask("a", "cpu", -1),
        ClockTask("a", "cpu", float("nan")),
        ClockTask("a", "cpu", float("inf")),
        ClockTask("a", "cpu", 1, (0,)),
    ],
)
def test_impossible_tasks_are_refused(task: ClockTask):
    with pytest.raises(ValueError, match="task 'a'"):
        run([task])
