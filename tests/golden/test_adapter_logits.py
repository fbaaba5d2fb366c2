"""LoRA adapters: the logits of the model they are merged into, and the same bits whatever else is in the pass."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from edgeinfer.adapter_choice import AdapterChoice
from edgeinfer.backends.base import DeviceOptions
from edgeinfer.backends.cpu.device import CpuDevice
from edgeinfer.backends.reference import ReferenceDevice
from tests.adapter_files import write_adapter, write_merged
from tests.golden.golden_devices import opened
from tests.golden.goldens import Golden, Player, distance

NAMES = (
    *("llama-f32", "qwen2-f32", "phi3-f32", "gemma2-f32", "glm4-f32", "gptneox-f32", "starcoder2-f32"),
    *("qwen35-f32", "lfm2-f32", "qwen3moe-f32", "minicpm3-f32"),
)
"""Rows in each order, fused matrices, biases, other layers than attention, and mixtures."""
SCALES = 1.0, -0.5
NEAR, HALVES = 1e-5, 0.005


def adapted(golden: Golden, folder: Path) -> tuple[list[AdapterChoice], Path]:
    """Two adapters of different ranks, and the model that they are merged into."""
    paths = [write_adapter(golden.model, folder / f"adapter-{rank}.gguf", rank=rank, seed=rank) for rank in (4, 7)]
    merged = write_merged(golden.model, folder / "merged.gguf", dict(zip(paths, SCALES, strict=True)))
    return [AdapterChoice(str(path), scale) for path, scale in zip(paths, SCALES, strict=True)], merged


@pytest.mark.parametrize("name", NAMES)
def test_logits_are_those_of_the_merged_model(name: str, tmp_path: Path) -> None:
    golden = Golden.read(name)
    choices, merged = adapted(golden, tmp_path)
    device = ReferenceDevice()
    with Player(device, replace(golden, model=merged)) as player:
        expected = player.feed(golden.tokens)
    with Player(device, golden, adapters=choices) as player:
        assert distance(player.feed(golden.tokens), expected) < NEAR
    with Player(device, golden, adapters=choices[:1]) as player:
        assert distance(player.feed(golden.tokens), expected) > 100 * NEAR
    with Player(CpuDevice(DeviceOptions(n_workers=2)), golden, adapters=choices) as player:
        assert distance(player.feed(golden.tokens), expected) < HALVES


@pytest.mark.parametrize("key", ["onnx", "openvino"])
def test_other_devices_multiply_too(key: str, tmp_path: Path) -> None:
    device, golden = opened(key), Golden.read("llama-f32")
    choices, merged = adapted(golden, tmp_path)
    with Player(device, replace(golden, model=merged)) as player:
        expected = player.feed(golden.tokens)
    with Player(device, golden, adapters=choices) as player:
        assert distance(player.feed(golden.tokens), expected) < HALVES


@pytest.mark.parametrize("name", ["llama-q8_0", "qwen35-q8_0"])
def test_bits_do_not_depend_on_passes_and_workers(name: str, tmp_path: Path) -> None:
    golden = Golden.read(name)
    choices = [AdapterChoice(str(write_adapter(golden.model, tmp_path / "adapter.gguf", rank=5)), 0.7)]
    found = []
    for n_workers, cuts in ((1, []), (2, [1, 2, 3, 9, 20]), (3, [16])):
        with Player(CpuDevice(DeviceOptions(n_workers=n_workers)), golden, adapters=choices) as player:
            found.append(np.concatenate([player.feed(part) for part in np.split(golden.tokens, cuts)]).tobytes())
    assert found[1:] == found[:1] * 2


@pytest.mark.peer
@pytest.mark.parametrize("name", ["llama-f32", "qwen2-f32", "phi3-f32", "glm4-f32"])
def test_llama_cpp_agrees(name: str, tmp_path: Path) -> None:
    llama_cpp = pytest.importorskip("llama_cpp")
    golden = Golden.read(name)
    choice = AdapterChoice(str(write_adapter(golden.model, tmp_path / "adapter.gguf")), 0.8)
    with Player(ReferenceDevice(), golden, adapters=[choice]) as player:
        own = player.feed(golden.tokens)
    given = {"lora_path": choice.path, "lora_scale": choice.scale}
    sizes = {"n_ctx": golden.n_context, "n_threads": 1, "n_gpu_layers": 0}
    model = llama_cpp.Llama(str(golden.model), **given, **sizes, logits_all=True, verbose=False)
    try:
        model.eval(golden.tokens.tolist())
        assert distance(np.array(model.scores[: len(golden.tokens)]), own) < HALVES
    finally:
        model.close()
