"""LoRA adapters of experts on the CPU: the same bits from memory and disk, in any order of workers, and what they cost.

`test_adapter_logits` compares their logits with those of merged models.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from edgeinfer.adapter_choice import AdapterChoice
from edgeinfer.backends.base import Device, DeviceOptions, Limits
from edgeinfer.backends.cpu import DEVICE, catalogue
from edgeinfer.backends.cpu.bundles import contents
from edgeinfer.backends.cpu.device import CpuDevice
from edgeinfer.backends.cpu.lanes.lane import CpuLane
from edgeinfer.backends.cpu.lowering.needs import WORKER_POOL, kernels_of
from edgeinfer.backends.device_ops import DeviceOps
from edgeinfer.backends.reference import ReferenceDevice
from edgeinfer.errors import UnsupportedModel
from edgeinfer.graph.op import Op
from edgeinfer.graph.ops.experts import Experts
from edgeinfer.models.load import open_model
from edgeinfer.models.work import pass_work
from tests.adapter_files import of_experts, write_adapter
from tests.golden.goldens import BRANCHING, Golden, Player, distance
from tests.golden.streamed_devices import Streamer
from tests.golden.test_architecture_logits import edited
from tests.golden.test_cpu_barriers import OrderedDevice

NAMES = "qwen3moe-k", "gemma4-moe-q8_0", "gpt-oss-q4_0", "mixtral-f16"
"""Gate and up apart and together, with biases, and of floats."""


@pytest.fixture(scope="module", autouse=True)
def small_bundles() -> Iterator[None]:
    """These models are tiny: cut them as finely as if they were large."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(contents, "SMALLEST_BYTES", 6000)
        yield


def adapters_of(golden: Golden, folder: Path) -> list[AdapterChoice]:
    """One of floats and one of Q8_0, both of experts alone."""
    paths = [
        write_adapter(golden.model, folder / f"{rank}.gguf", rank=rank, seed=rank, wanted=of_experts, rounds=rounds)
        for rank, rounds in ((5, False), (32, True))
    ]
    return [AdapterChoice(str(path), scale) for path, scale in zip(paths, (1.0, -0.5), strict=True)]


def played(device: Device, golden: Golden, choices: list[AdapterChoice]) -> bytes:
    """Logits of a long pass, in which a sequence has no adapter, of tokens one by one, and of a tree."""
    tokens, found = golden.tokens, []
    with Player(device, golden, n_sequences=2, adapters=choices) as player:
        player.scales = {0: (1.0, -0.5)[: len(choices)], 1: (0.0, 0.0)[: len(choices)]}
        found.append(player.feed_together({0: tokens[:60], 1: tokens[3:40]}))
        found += [player.feed(tokens[60:62]), player.feed(tokens[62:63]), player.look(tokens[:12], BRANCHING)]
    return np.concatenate(found).tobytes()


@pytest.mark.parametrize("name", NAMES)
def test_bits_are_the_same_from_disk_and_in_any_order_of_workers(name: str, tmp_path: Path) -> None:
    golden = Golden.read(name)
    choices = adapters_of(golden, tmp_path)
    expected = played(CpuDevice(DeviceOptions(n_workers=2)), golden, choices)
    assert played(CpuDevice(DeviceOptions(n_workers=1)), golden, choices[:1]) != expected
    for order in ((1, 0), (2, 0, 1)):
        assert played(OrderedDevice(order), golden, choices) == expected
    assert played(Streamer(tmp_path / "model.bundles", 0.0), golden, choices) == expected


def calls_of(lane: CpuLane, *, alone: bool, unused: frozenset[int] = frozenset()) -> list[tuple[object, ...]]:
    """What identifies the calls of a tape."""
    calls = (call for _, found in lane._lowering.calls(alone, unused) for call in found)
    return [(call.kernel.name, call.calls and call.calls.name, call.share, call.reads, call.writes) for call in calls]


@pytest.mark.parametrize("name", ["qwen3moe-k", "mixtral-f16"])
def test_a_pass_without_adapters_has_the_calls_of_the_model_alone(name: str, tmp_path: Path) -> None:
    golden, device = Golden.read(name), CpuDevice(DeviceOptions(n_workers=1))
    choices = adapters_of(golden, tmp_path)
    with Player(device, golden) as plain, Player(device, golden, adapters=choices) as player:
        assert isinstance(plain.lane, CpuLane)
        assert isinstance(player.lane, CpuLane)
        for alone in (False, True):
            expected = calls_of(plain.lane, alone=alone)
            assert calls_of(player.lane, alone=alone, unused=frozenset({0, 1})) == expected
            both, one = (calls_of(player.lane, alone=alone, unused=frozenset(some)) for some in ((), {1}))
            assert len(both) > len(one) > len(expected)


def test_experts_without_gates_are_adapted(tmp_path: Path) -> None:
    golden = Golden.read("olmoe-f32")
    choices, found = adapters_of(golden, tmp_path)[:1], []
    for device in (ReferenceDevice(), CpuDevice(DeviceOptions(n_workers=2))):
        with open_model(golden.model, golden.n_context, adapters=choices) as model:
            spec = edited(model.spec, without_gates)
        with Player(device, golden, spec, adapters=choices) as player:
            found.append(player.feed(golden.tokens))
            player.scales = {0: (0.0,)}
            player.begin()
            assert distance(player.feed(golden.tokens), found[-1]) > 0.1
    assert distance(found[1], found[0]) < 0.005


def without_gates(op: Op) -> Op:
    """Squared ReLUs without gates."""
    if not isinstance(op, Experts):
        return op
    adapters = tuple(each for each in op.adapters if each.stack != "gate")
    return replace(op, gate=(), activation="relu2", adapters=adapters)


def test_the_kernels_of_a_tape_are_known_before_its_memory_is_there(tmp_path: Path) -> None:
    golden, device = Golden.read("qwen3moe-k"), CpuDevice(DeviceOptions(n_workers=1))
    with Player(device, golden, adapters=adapters_of(golden, tmp_path)) as player:
        lane = player.lane
        assert isinstance(lane, CpuLane)
        tapes = [lane._lowering.calls(alone, unused) for alone in (False, True) for unused in _SETS]
        calls = [call for tape in tapes for _, found in tape for call in found]
        called = {each.name for call in calls for each in (call.kernel, call.calls) if each is not None}
        told = {each.name for each in kernels_of(lane._spec, lane._file.tensors, "f16", device.isa)}
    assert told - {each.name for each in (*WORKER_POOL, catalogue.PACK_PANELS, catalogue.copy_slots("f16"))} == called


_SETS = frozenset[int](), frozenset({0}), frozenset({1}), frozenset({0, 1})


@pytest.mark.parametrize("name", ["qwen3moe-f32", "gemma4-moe-f32"])
def test_memory_and_work_count_them(name: str, tmp_path: Path) -> None:
    golden = Golden.read(name)
    choices, device = adapters_of(golden, tmp_path), CpuDevice(DeviceOptions(n_workers=1))
    with open_model(golden.model) as plain, open_model(golden.model, adapters=choices) as model:
        active = next(op.active / op.count for op in plain.spec.ops() if isinstance(op, Experts))
        adapted = {name: info for name, info in model.file.tensors.items() if name.startswith("adapter.")}
        limits = Limits(golden.n_context, 12, max_tokens=256, max_outputs=256)
        footprints = [DEVICE.footprint(each.spec, each.file.tensors, limits) for each in (plain, model)]
        work = [pass_work(each.spec, each.file.tensors, 1, 0) for each in (plain, model)]
    n_bytes = sum(info.nbytes for info in adapted.values())
    assert abs(work[1].weight_bytes - work[0].weight_bytes - active * n_bytes) <= 8  # rounded op by op
    n_numbers = sum(math.prod(info.shape) for info in adapted.values())
    assert work[1].multiply_adds - work[0].multiply_adds == round(active * n_numbers)
    assert footprints[1].weight_bytes - footprints[0].weight_bytes >= n_bytes
    assert footprints[1].buffer_bytes > footprints[0].buffer_bytes
    with Player(device, golden, adapters=choices) as player:
        assert isinstance(player.lane, CpuLane)
        assert player.lane._packed.resident_bytes == footprints[1].weight_bytes
        rows = player.lane._lowering.experts.resident_bytes
        assert rows == player.lane._buffers.layout.expert_sizes.total_bytes


@pytest.mark.parametrize("device", ["cuda", "onnx", "openvino"])
def test_devices_without_experts_refuse_them_by_name(device: str, tmp_path: Path) -> None:
    golden = Golden.read("qwen3moe-f32")
    with open_model(golden.model, adapters=adapters_of(golden, tmp_path)) as model:
        ops: DeviceOps[object] = DeviceOps(f"edgeinfer.backends.{device}.ops", device)  # type: ignore[type-var]
        with pytest.raises(UnsupportedModel, match=f"{device} cannot run the op (router|experts): it has no such op"):
            ops.check_kinds(model.spec.ops())
