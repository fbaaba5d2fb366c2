"""Models on several devices: the same results as on one, however they are split, and the order of what is done."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest

from edgeinfer.backends.base import DEVICES, Device, DeviceOptions, Limits
from edgeinfer.backends.capabilities import DeviceCapabilities
from edgeinfer.backends.reference import ReferenceDevice
from edgeinfer.engine.run.executor import Executor
from edgeinfer.engine.shared_lane.lane import SharedLane
from edgeinfer.engine.shared_lane.partition import partition, turns_of
from edgeinfer.engine.shared_lane.timeline import DeviceSpan, StepTimeline
from edgeinfer.errors import DeviceUnavailable, EdgeInferError
from edgeinfer.graph.graph import ModelSpec
from edgeinfer.models.gguf import GGUFFile
from edgeinfer.models.load import open_model
from edgeinfer.scheduling.placement.placement import Placement
from edgeinfer.steps import Progress, no_progress
from tests.golden.goldens import Golden, Player, distance
from tests.unit.engine.run.test_executor import chain
from tests.unit.engine.shared_lane.placements import alike, at_random

FAMILIES = ("llama-k", "qwen2-q4_0", "gemma2-q8_0", "phi3-f16", "mistral-window-q8_0", "llama-q8_0")
TWO = ["cpu", "reference"]
THREE = ["cpu", "reference", "other"]
NOISE = 2e-2
"""Relative: another order of sums now and then rounds an activation to another int8, which is most of what is seen."""


class Together:
    """A `Device` that runs models on the CPU and on reference devices by a placement, for `Player`."""

    name = "together"
    batch_invariant = False
    capabilities = DeviceCapabilities()

    def __init__(self, placement: Placement | str, others: Mapping[str, Device]) -> None:
        self._cpu = DEVICES.get("cpu").open(DeviceOptions(n_workers=2))
        self._placement, self._others = placement, others

    def compile(self, spec: ModelSpec, file: GGUFFile, limits: Limits, progress: Progress = no_progress) -> SharedLane:
        assert isinstance(self._placement, Placement)
        return SharedLane(spec, self._placement, self._cpu, self._others, file, limits, progress)

    def close(self) -> None:
        self._cpu.close()


def reference() -> ReferenceDevice:
    """Rounds as the CPU device does, so that any difference is a fault."""
    return ReferenceDevice(activations="int8", kv="f16")


def spec_of(name: str) -> ModelSpec:
    golden = Golden.read(name)
    with open_model(golden.model, golden.n_context) as model:
        return model.spec


def check(name: str, placement: Placement, devices: list[str]) -> None:
    """Chunks, a tree and a single token come out as on the CPU alone, but for the noise."""
    golden = Golden.read(name)
    others = {device: reference() for device in devices[1:]}
    cpu = DEVICES.get("cpu").open(DeviceOptions(n_workers=2))
    with Player(Together(placement, others), golden) as player, Player(cpu, golden) as alone:
        for chunk in np.split(golden.tokens[:60], [10, 11, 40]):
            assert distance(player.feed(chunk), alone.feed(chunk)) < NOISE
        tree = golden.tokens[60:66]
        parents = [-1, 0, 0, 1, 1, 2]
        assert distance(player.look(tree, parents), alone.look(tree, parents)) < NOISE
    cpu.close()


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("shares", [(1.0, 0.0), (0.5, 0.5), (0.3, 0.7), (0.0, 1.0)])
@pytest.mark.parametrize(("home", "attention"), [("cpu", "cpu"), ("cpu", "reference"), ("reference", "cpu")])
def test_rows_and_attention_may_be_anywhere(name: str, shares: tuple[float, float], home: str, attention: str) -> None:
    placement = alike(spec_of(name), home, attention, dict(zip(TWO, shares, strict=True)))
    check(name, placement, TWO)


@pytest.mark.parametrize("seed", range(12))
def test_any_placement_gives_the_same(seed: int) -> None:
    rng = np.random.default_rng(seed)
    name = FAMILIES[seed % len(FAMILIES)]
    devices = THREE if seed % 2 else TWO
    check(name, at_random(spec_of(name), devices, rng), devices)


def test_layers_may_lie_apart() -> None:
    """The first layers here, the rest there, as llama.cpp splits models."""
    spec = spec_of("llama-q8_0")
    here, there = (alike(spec, device, device, {device: 1.0}) for device in TWO)
    middle = len(spec.stages) // 2
    placement = Placement((*here.stages[:middle], *there.stages[middle:]))
    tasks = partition(spec, placement, "cpu")
    assert [task.device for task in tasks] == ["cpu", "reference"]
    assert tasks[1].inputs == ("x",)
    check("llama-q8_0", placement, TWO)


def test_devices_work_at_the_same_time() -> None:
    """Rows of a product start on the others before the host computes its own, and are awaited after that."""
    spec = spec_of("llama-q8_0")
    tasks = partition(spec, alike(spec, "cpu", "cpu", {"cpu": 0.5, "reference": 0.5}), "cpu")
    turns = turns_of(tasks, "cpu")
    acts = [turn.act for turn in turns]
    assert acts[0] == "run"
    together = [acts[place : place + 3] for place, act in enumerate(acts) if act == "submit"]
    assert together
    assert all(found == ["submit", "run", "wait"] for found in together)
    for number, task in enumerate(tasks):
        assert all(before < number for before in task.after)


def test_pages_survive_reading_and_writing_on_several_devices() -> None:
    golden = Golden.read("llama-q8_0")
    spec = spec_of("llama-q8_0")
    split = alike(spec, "cpu", "reference", {"cpu": 0.5, "reference": 0.5})
    whole = alike(spec, "cpu", "cpu", {"cpu": 1.0})
    placement = Placement((*split.stages[:2], *whole.stages[2:]))
    pages = np.arange(12, dtype=np.int32)
    device = Together(placement, {"reference": reference()})
    with Player(device, golden) as first, Player(device, golden) as second:
        first.feed(golden.tokens[:70])
        second.feed(golden.tokens[-70:])
        second.lane.write_pages(pages, first.lane.read_pages(pages))
        assert np.array_equal(second.lane.read_pages(pages), first.lane.read_pages(pages))
        assert second.feed(golden.tokens[70:]).tobytes() == first.feed(golden.tokens[70:]).tobytes()


def test_states_of_another_placement_are_refused() -> None:
    """Pages of as many bytes that hold other layers on each device."""
    golden, spec = Golden.read("llama-q8_0"), spec_of("llama-q8_0")
    there, here = (alike(spec, "cpu", device, {"cpu": 1.0}) for device in ("reference", "cpu"))
    first = Placement((*there.stages[:2], *here.stages[2:]))
    second = Placement((*here.stages[:2], there.stages[2], *here.stages[3:]))
    limits = Limits(128, 4, 64, 8)
    with open_model(golden.model, 128) as model:
        found = []
        for placement in (first, second):
            device = Together(placement, {"reference": reference()})
            lane = device.compile(model.spec, model.file, limits)
            found.append(Executor(device, lane, limits, "model"))
        sequence = found[0].create()
        found[0].evaluate(chain(sequence, 0, [1, 2, 3]))
        found[0].commit(sequence, np.arange(3, dtype=np.int32))
        state = found[0].save(sequence)
        found[0].restore(sequence, state)
        with pytest.raises(EdgeInferError):
            found[1].restore(found[1].create(), state)
        for executor in found:
            executor.close()


def test_passes_without_logits_and_long_prompts() -> None:
    """Chunks of a prompt whose logits nobody wants, on every graph runtime that is here."""
    golden, spec = Golden.read("llama-q8_0"), spec_of("llama-q8_0")
    others = [key for key in ("reference", "onnx", "openvino") if key == "reference" or is_here(key)]
    for other in others:
        placement = alike(spec, "cpu", "cpu", {"cpu": 0.5, other: 0.5})
        opened = DEVICES.get(other).open(DeviceOptions(n_workers=1))
        with open_model(golden.model, 128) as model:
            device, limits = Together(placement, {other: opened}), Limits(128, 4, 64, 8)
            with Executor(device, device.compile(model.spec, model.file, limits), limits, "model") as executor:
                sequence = executor.create()
                silent = chain(sequence, 0, golden.tokens[:20].tolist())
                logits = executor.evaluate(replace(silent, outputs=np.zeros(0, np.int32)))
                assert logits.shape == (0, spec.n_vocab)
                executor.commit(sequence, np.arange(20, dtype=np.int32))
                last = executor.evaluate(chain(sequence, 20, golden.tokens[20:30].tolist()))
                assert distance(last[:, golden.columns], golden.logits[29:30]) < 0.1
                executor.restore(sequence, executor.save(sequence))


def is_here(key: str) -> bool:
    try:
        DEVICES.get(key).open(DeviceOptions(n_workers=1)).close()
    except DeviceUnavailable:
        return False
    return True


def test_devices_that_take_no_parts_are_refused() -> None:
    golden, spec = Golden.read("llama-q8_0"), spec_of("llama-q8_0")
    placement = alike(spec, "cpu", "cpu", {"cpu": 0.5, "null": 0.5})
    null = DEVICES.get("null").open(DeviceOptions())
    with pytest.raises(DeviceUnavailable, match="null cannot run part"):
        Player(Together(placement, {"null": null}), golden)


def test_the_timeline_tells_who_worked_when() -> None:
    spans = (
        DeviceSpan("cpu", "a", 0.0, 2.0),
        DeviceSpan("gpu", "a", 1.0, 1.5),
        DeviceSpan("gpu", "b", 1.4, 3.0),
        DeviceSpan("cpu", "b", 4, 5),
    )
    timeline = StepTimeline(spans, 0.0, 5.0)
    assert timeline.devices == ("cpu", "gpu")
    assert timeline.busy_s("cpu") == 3.0
    assert timeline.busy_s("gpu") == 2.0
    assert timeline.overlap == pytest.approx(0.5)
    assert StepTimeline(spans[:1], 0.0, 2.0).overlap == 0.0
    three = (
        DeviceSpan("a", "", 0, 4),
        DeviceSpan("b", "", 1, 3),
        DeviceSpan("c", "", 2, 3.5),
        DeviceSpan("b", "", 5, 5.5),
    )
    assert StepTimeline(three, 0.0, 6.0).overlap == pytest.approx(1.0)  # c works while a and b do: counted once
