"""Experts without gate matrices on the CPU: as the reference with the same rounding, and always the same bits.

The models are those of mixtures whose experts lose their gates, so that matrices come in many formats.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from edgeinfer.backends.base import DeviceOptions, Limits
from edgeinfer.backends.cpu import DEVICE, catalogue
from edgeinfer.backends.cpu.bundles import contents
from edgeinfer.backends.cpu.device import CpuDevice
from edgeinfer.backends.cpu.lanes.lane import CpuLane
from edgeinfer.backends.cpu.lowering.needs import WORKER_POOL, kernels_of
from edgeinfer.backends.reference import ReferenceDevice
from edgeinfer.graph.graph import ModelSpec
from edgeinfer.graph.op import Op
from edgeinfer.graph.ops.experts import Experts
from edgeinfer.models.load import open_model
from edgeinfer.models.work import pass_work
from edgeinfer.scheduling.cost.work import work_of
from tests.golden.goldens import BRANCHING, PATHS, Golden, Player, distance
from tests.golden.replay import RecordingDevice, Replay
from tests.golden.streamed_devices import Streamer
from tests.golden.test_architecture_logits import Edit, edited


def squared(op: Op) -> Op:
    """Squared ReLUs without gates."""
    return replace(op, gate=(), biases=None, activation="relu2") if isinstance(op, Experts) else op


def smooth(op: Op) -> Op:
    """GELUs without gates."""
    return replace(op, gate=(), biases=None, activation="gelu") if isinstance(op, Experts) else op


def gated(op: Op) -> Op:
    """GELUs of gates."""
    return replace(op, activation="gelu") if isinstance(op, Experts) else op


CASES: tuple[tuple[str, Edit], ...] = (
    ("mixtral-f16", squared),
    ("olmoe-q8_0", squared),
    ("qwen3moe-k", squared),
    ("qwen2moe-q4_0", smooth),
    ("gpt-oss-q4_0", smooth),
    ("mixtral-f16", gated),
    ("olmoe-q8_0", gated),
)
"""The second last ones have a shared expert with a score, and matrices that differ in format."""


@pytest.fixture(scope="module", autouse=True)
def small_bundles() -> Iterator[None]:
    """These models are tiny: cut them as finely as if they were large."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(contents, "SMALLEST_BYTES", 6000)
        yield


@pytest.fixture(scope="module", params=CASES, ids=lambda case: f"{case[0]} {case[1].__name__}")
def case(request: pytest.FixtureRequest) -> tuple[Golden, ModelSpec]:
    name, edit = request.param
    golden = Golden.read(name)
    with open_model(golden.model, golden.n_context) as model:
        return golden, edited(model.spec, edit)


@pytest.fixture(scope="module")
def whole(case: tuple[Golden, ModelSpec]) -> np.ndarray:
    with Player(CpuDevice(DeviceOptions(n_workers=2)), *case) as player:
        return player.feed(case[0].tokens)


def test_logits_equal_the_reference_with_the_same_rounding(case: tuple[Golden, ModelSpec], whole: np.ndarray) -> None:
    golden, replay = case[0], Replay()
    chunks = np.split(golden.tokens, [7, 8, 40])
    with Player(RecordingDevice(CpuDevice(DeviceOptions(n_workers=3)), replay), *case) as player:
        logits = np.concatenate([player.feed(chunk) for chunk in chunks])
    assert np.array_equal(logits, whole)
    with Player(ReferenceDevice("int8", "f16", replay.rounding), *case) as player:
        expected = np.concatenate([player.feed(chunk) for chunk in chunks])
    assert replay.is_used_up
    assert distance(logits, expected) < 1e-5
    assert golden.error(expected) > 1e-2  # another model


@pytest.mark.parametrize("n_workers", [1, 3])
def test_passes_and_workers_change_no_bit(case: tuple[Golden, ModelSpec], whole: np.ndarray, n_workers: int) -> None:
    tokens = case[0].tokens
    with Player(CpuDevice(DeviceOptions(n_workers=n_workers)), *case) as player:
        for cuts in ([5, 6, 29, 45], range(1, 12)):
            player.begin()
            assert np.array_equal(np.concatenate([player.feed(part) for part in np.split(tokens, cuts)]), whole)
        player.begin()
        player.feed(tokens[:20])
        tree = player.look(tokens[20:32], BRANCHING)
        for path in PATHS:
            player.begin()
            plain = player.feed(np.concatenate([tokens[:20], tokens[20:32][path]]))[20:]
            assert np.array_equal(tree[path], plain)


@pytest.mark.parametrize("share", [0.0, 0.5])
def test_experts_read_from_disk_give_the_same_bits(
    case: tuple[Golden, ModelSpec], whole: np.ndarray, tmp_path: Path, share: float
) -> None:
    tokens = case[0].tokens
    with Player(Streamer(tmp_path / "model.bundles", share), *case) as player:
        found = [player.feed(part) for part in np.split(tokens, [30, 31, 32, 33])]
    assert np.array_equal(np.concatenate(found), whole)


def test_the_kernels_of_a_tape_are_known_before_its_memory_is_there(case: tuple[Golden, ModelSpec]) -> None:
    device = CpuDevice(DeviceOptions(n_workers=1))
    with Player(device, *case) as player:
        lane = player.lane
        assert isinstance(lane, CpuLane)
        calls = list(lane._every_call())
        called = {each.name for call in calls for each in (call.kernel, call.calls) if each is not None}
        told = {each.name for each in kernels_of(lane._spec, lane._file.tensors, "f16", device.isa)}
    assert told - {each.name for each in (*WORKER_POOL, catalogue.PACK_PANELS, catalogue.copy_slots("f16"))} == called


def test_neither_memory_nor_work_counts_gates_that_are_not_there() -> None:
    with open_model(Golden.read("olmoe-q8_0").model) as model:
        specs, tensors = (model.spec, edited(model.spec, squared)), model.file.tensors
        gates = sum(info.nbytes for name, info in tensors.items() if "ffn_gate_exps" in name)
        experts = sum(info.nbytes for name, info in tensors.items() if "_exps" in name)
        used = [op.active / op.count for op in model.spec.ops() if isinstance(op, Experts)]
    with_gates, without = (DEVICE.footprint(spec, tensors, Limits(64, 1, 8, 8)) for spec in specs)
    assert with_gates.weight_bytes - without.weight_bytes > 0.9 * gates
    first, second = (pass_work(spec, tensors, 1, 0) for spec in specs)
    assert first.weight_bytes - second.weight_bytes == pytest.approx(gates * used[0])
    products = [product for stage in work_of(specs[1], tensors).stages for product in stage.shape.products]
    assert sum(product.n_bytes for product in products if product.experts > 1) == experts - gates
