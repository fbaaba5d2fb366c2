"""Every device of the registry, and its lanes: what their records of capabilities say, they do."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import FrozenInstanceError

import numpy as np
import pytest
from numpy.typing import NDArray

from edgeinfer.backends.base import WHOLE, Device, Limits, WorkSplit
from edgeinfer.backends.capabilities import Buffers, DeviceCapabilities, LaneCapabilities, OpTimes, Workers
from edgeinfer.engine.probing.rates import placed_step
from edgeinfer.graph.graph import ModelSpec, whole
from edgeinfer.graph.step import Step
from edgeinfer.models.load import Model, open_model
from tests.golden.golden_devices import COUNTING
from tests.golden.goldens import ALL_OPS, Golden, distance

LIMITS = Limits(64, 4, 16, 16)
EXACT = 1e-5


@pytest.fixture(scope="module")
def model() -> Iterator[Model]:
    with open_model(Golden.read("llama-q8_0").model, 64) as found:
        yield found


@pytest.fixture
def step() -> Step:
    return placed_step(LIMITS, 5, 0)


def test_a_lane_does_what_its_record_says(device: Device, model: Model, step: Step) -> None:
    lane = device.compile(model.spec, model.file, LIMITS)
    found = lane.capabilities
    assert isinstance(found, LaneCapabilities)
    with pytest.raises(FrozenInstanceError):
        found.workers = None  # type: ignore[misc]
    logits = lane.run(step).copy()
    assert found.states is found.streaming is None  # attention alone, and weights that are in memory
    assert found.cutting is None or found.cutting.activations == (0, 0)
    if found.peaks is not None:
        assert found.peaks.peaks.shape[0] == 1
        assert found.peaks.peaks.max() == logits.max()
    if found.buffers is not None:
        check_buffers(found.buffers, model.spec, logits)
    if found.workers is not None:
        check_workers(found.workers)
        assert lane.run(step).tobytes() == logits.tobytes()
        assert len(found.workers.timing.busy) == 1
    if found.op_times is not None:
        check_op_times(found.op_times, model.spec, step)
    lane.close()


def check_buffers(buffers: Buffers, spec: ModelSpec, logits: NDArray[np.float32]) -> None:
    assert np.array_equal(buffers.value(spec.logits)[:, : spec.output_width], logits)


def check_workers(workers: Workers) -> None:
    """Afterwards the first one works alone."""
    assert len(workers.work_split.workers) == workers.n_workers == 2
    assert workers.seconds == workers.timing.seconds > 0
    assert len(workers.timing.busy) == 2
    assert len(workers.affinity) in (0, 2)
    workers.work_split = WorkSplit((0,), (0, WHOLE))


def check_op_times(op_times: OpTimes, spec: ModelSpec, step: Step) -> None:
    ops = list(spec.ops())
    found = op_times.time_ops(step)
    assert {id(each.op) for each in found} <= {id(op) for op in ops}
    assert any(each.multiplies for each in found)
    assert sum(each.seconds for each in found) > 0
    stage = spec.stages[1]
    assert {id(each.op) for each in op_times.time_ops(step, {stage.name})} <= {id(op) for op in stage.ops}
    profile = op_times.profile(step)
    assert {each.op for each in profile} <= {type(op).__name__ for op in ops}
    assert sum(each.calls for each in profile) == len(found)
    assert op_times.overhead().launch_s > 0


@pytest.mark.parametrize("key", [key for key in ALL_OPS if key not in COUNTING])
def test_states_are_there_for_a_model_that_keeps_some(device: Device) -> None:
    with open_model(Golden.read("lfm2-q8_0").model, 64) as model:
        lane = device.compile(model.spec, model.file, LIMITS)
        states = lane.capabilities.states
        assert states is not None
        assert states.read(range(states.n_slots)).shape == (states.n_slots, states.slot_bytes)
        lane.close()


def test_a_device_compiles_the_parts_that_its_record_says(device: Device, model: Model, step: Step) -> None:
    found, fragment = device.capabilities, whole(model.spec)
    assert isinstance(found, DeviceCapabilities)
    alone = device.compile(model.spec, model.file, LIMITS)
    expected = alone.run(step).copy()
    alone.close()
    lanes = []
    if found.fragments is not None:
        lanes.append(found.fragments.compile_fragment(fragment, model.file, LIMITS))
    if found.parts is not None:
        assert found.fragments is not None
        lanes += found.parts.compile_fragments((fragment,), model.file, LIMITS)
    for lane in lanes:
        lane.submit(step, {})
        assert distance(lane.wait()[model.spec.logits], expected) < EXACT
        lane.close()
    if found.sections is not None:
        exposed = [frozenset[str]()] * len(model.spec.stages)
        host = found.sections.compile_sections(model.spec, exposed, model.file, LIMITS)
        host.begin(step)
        for number in range(len(exposed)):
            host.run_section(number)
        assert distance(host.read(model.spec.logits), expected) < EXACT
        host.close()


def test_memory_of_a_device_s_own_is_counted(device: Device) -> None:
    memory = device.capabilities.memory
    n_bytes = None if memory is None else memory.memory_bytes
    assert n_bytes is None or n_bytes > 0
