"""Times of ops: a lane that can say them is profiled at the right depth; one that cannot is left alone."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from edgeinfer.app.bench.ours import OpProfile
from edgeinfer.app.bench.subject import BenchJob, BenchOpening, Conditions, NotMeasurable, OpTime
from edgeinfer.backends.base import OpSeconds
from edgeinfer.backends.capabilities import KernelTime, LaneCapabilities, Overhead
from edgeinfer.graph.step import PAGE, Step
from tests.golden.goldens import DATA

CONTEXT = 1300


class ProfilingLane:
    """Says fixed times, and remembers the steps it was given."""

    def __init__(self) -> None:
        self.steps: list[Step] = []

    @property
    def capabilities(self) -> LaneCapabilities:
        return LaneCapabilities(op_times=self)

    def time_ops(self, step: Step, stages: Collection[str] | None = None) -> list[OpSeconds]:
        """Not asked for."""
        return []

    def profile(self, step: Step) -> list[KernelTime]:
        """Times that grow with each pass."""
        self.steps.append(step)
        return [KernelTime("MatMul", "product", float(len(self.steps)), 0.5, 4)]

    def overhead(self) -> Overhead:
        """A launch, a call, a barrier."""
        return Overhead(3.0, 2.0, 1.0)

    def close(self) -> None:
        """Nothing is held."""


@pytest.fixture
def subject(tiny_model: Path) -> Iterator[OpProfile]:
    with closing(OpProfile(BenchOpening("null", Conditions(tiny_model, 1, CONTEXT), purpose="ops"))) as opened:
        yield opened


def test_passes_are_placed_at_the_depth_and_their_median_is_given(
    subject: OpProfile, monkeypatch: pytest.MonkeyPatch
) -> None:
    lane = ProfilingLane()
    monkeypatch.setattr(subject, "_lane", lane)
    reply = subject.run(BenchJob("ops", 1, depth=600))
    assert reply.ops == (OpTime("MatMul", "product", 4, 8.5, 0.5),)  # passes 2 to 15; the first only warms up
    assert reply.overhead == {"launch_s": 3.0, "call_s": 2.0, "barrier_s": 1.0}
    assert reply.python_s == 0  # the lane does not say how long its workers took
    assert reply.clock_hz is not None
    assert 1e8 < reply.clock_hz < 1e10
    (step, *_) = lane.steps
    assert step.batch.positions.tolist() == [600]
    assert (step.tables[step.rows[0], : 600 // PAGE + 1] >= 0).all()
    subject.run(BenchJob("ops", 2000, depth=0))
    assert len(lane.steps[-1].batch.tokens) == 256  # one pass holds no more


def test_a_device_that_does_not_time_its_ops_says_so(subject: OpProfile) -> None:
    with pytest.raises(NotMeasurable, match="does not time its ops"):
        subject.run(BenchJob("ops", 1))


@pytest.mark.parametrize(("family", "op"), [("qwen35", "GatedDeltaNet"), ("lfm2", "CausalConv")])
def test_ops_with_states_are_timed_too(family: str, op: str) -> None:
    with closing(
        OpProfile(BenchOpening("cpu", Conditions(DATA / f"{family}-q8_0.gguf", 1, 256), purpose="ops"))
    ) as opened:
        for n_tokens in (1, 70):
            reply = opened.run(BenchJob("ops", n_tokens, depth=100))
            assert any(time.op == op and time.busy_s > 0 for time in reply.ops)
            assert 0 < reply.python_s < sum(time.busy_s + time.waiting_s for time in reply.ops) + 1
