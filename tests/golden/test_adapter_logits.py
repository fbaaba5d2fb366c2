"""LoRA adapters: the logits of the model they are merged into, and the same bits whatever else is in the pass.

Each sequence of a pass has scales of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from edgeinfer.adapter_choice import AdapterChoice
from edgeinfer.backends.base import Device, DeviceOptions
from edgeinfer.backends.cpu.device import CpuDevice
from edgeinfer.backends.reference import ReferenceDevice
from tests.adapter_files import adaptable, embedding_too, write_adapter, write_merged
from tests.golden.golden_devices import opened
from tests.golden.goldens import Golden, Player, distance

NAMES = (
    *("llama-f32", "qwen2-f32", "phi3-f32", "gemma2-f32", "glm4-f32", "gptneox-f32", "starcoder2-f32"),
    *("qwen35-f32", "lfm2-f32", "qwen3moe-f32", "minicpm3-f32"),
    *("qwen2moe-f32", "gpt-oss-f32", "llama4-f32", "gemma4-moe-f32"),
)
"""Rows in each order, fused matrices, biases, embeddings that are outputs, other layers than attention, and mixtures.

Of these one has an expert that all tokens use, one biases, one shares that weigh the source, one gate and up together.
"""
UNTIED = "phi3", "qwen2-", "qwen3moe", "glm4", "gptneox"
"""Families whose goldens have an embedding apart from the output matrix; llama.cpp stops at adapters of others."""
SCALES = 1.0, -0.5
NEAR, HALVES = 1e-5, 0.005


def adapted(
    golden: Golden, folder: Path, *, merges: bool = True, wanted: Callable[[Any], bool] = embedding_too
) -> tuple[list[AdapterChoice], Path]:
    """Two adapters of different ranks, and the model that they are merged into, if it is wanted."""
    paths = [
        write_adapter(golden.model, folder / f"adapter-{rank}.gguf", rank=rank, seed=rank, wanted=wanted)
        for rank in (4, 7)
    ]
    merged = folder / "merged.gguf"
    if merges:
        write_merged(golden.model, merged, dict(zip(paths, SCALES, strict=True)))
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
    choices, merged = adapted(golden, tmp_path, wanted=adaptable)  # they read no rows of adapters by token
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


STATED = {0: (1.0, -0.5), 1: (0.0, 0.0), 2: (0.0, 0.7), 3: (-2.0, 0.0)}
"""Scales of the sequences of one pass."""
TREE = [-1, 0, 1, 0, 3, 2]


def texts(golden: Golden) -> dict[int, NDArray[np.int32]]:
    """A text for each sequence, all of other lengths."""
    return {sequence: np.roll(golden.tokens, sequence)[: 20 + sequence] for sequence in STATED}


def fed_alone(device: Device, golden: Golden, choices: list[AdapterChoice], sequence: int) -> bytes:
    """The bits of a sequence's logits in passes of its own, token by token at the end, and of a tree after it."""
    tokens = texts(golden)[sequence]
    with Player(device, golden, n_sequences=4, adapters=choices) as player:
        player.scales = STATED
        found = [player.feed(part, sequence) for part in np.split(tokens, [9, len(tokens) - 1])]
        tree = [] if player.has_states else [player.look(golden.tokens[: len(TREE)], TREE, sequence)]
        return np.concatenate([*found, *tree]).tobytes()


@pytest.mark.parametrize("name", ["llama-q8_0", "gemma2-k", "qwen35-q8_0", "qwen3moe-q8_0", "phi3-f32", "gpt-oss-q4_0"])
@pytest.mark.parametrize("rounds", [False, True])
def test_bits_of_a_sequence_do_not_depend_on_the_scales_of_others(name: str, rounds: bool, tmp_path: Path) -> None:
    golden = Golden.read(name)
    choices = adapted(golden, tmp_path, merges=False)[0]
    if rounds:  # products with such an adapter share int8 activations with others, and make some of their own
        path = write_adapter(golden.model, tmp_path / "rounded.gguf", rank=32, rounds=True)
        choices[0] = AdapterChoice(str(path))
    alone = {s: fed_alone(CpuDevice(DeviceOptions(n_workers=1)), golden, choices, s) for s in STATED}
    assert len(set(alone.values())) == len(alone)
    for n_workers in (1, 3):
        with Player(CpuDevice(DeviceOptions(n_workers=n_workers)), golden, n_sequences=4, adapters=choices) as player:
            player.scales = STATED
            together = player.feed_together(texts(golden))
            ends = np.cumsum([len(tokens) for tokens in texts(golden).values()])
            for sequence, logits in zip(STATED, np.split(together, ends[:-1]), strict=True):
                tree = [] if player.has_states else [player.look(golden.tokens[: len(TREE)], TREE, sequence)]
                assert np.concatenate([logits, *tree]).tobytes() == alone[sequence]


@pytest.mark.parametrize("name", ["llama-q8_0", "gemma2-k", "glm4-q8_0", "qwen35-f32", "llama-f32"])
def test_at_scale_zero_the_bits_are_those_of_the_model_alone(name: str, tmp_path: Path) -> None:
    golden, device = Golden.read(name), CpuDevice(DeviceOptions(n_workers=2))
    # what an adapter of such numbers adds is infinite or no number, and it must not reach the rows of others
    path = write_adapter(golden.model, tmp_path / "adapter.gguf", alpha=3e38)
    with Player(device, golden) as player:
        expected = player.feed(golden.tokens).tobytes()
    with Player(device, golden, n_sequences=2, adapters=[AdapterChoice(str(path))]) as player:
        player.scales = {0: (0.0,), 1: (1.0,)}
        assert player.feed(golden.tokens).tobytes() == expected
        player.begin(2)
        both = player.feed_together({0: golden.tokens, 1: golden.tokens})
        assert both[: len(golden.tokens)].tobytes() == expected
        assert both[len(golden.tokens) :].tobytes() != expected


@pytest.mark.parametrize("name", ["llama-f32", "phi3-f32", "qwen3moe-f32"])
def test_each_sequence_has_the_logits_of_the_model_merged_at_its_scales(name: str, tmp_path: Path) -> None:
    golden = Golden.read(name)
    choices = adapted(golden, tmp_path, merges=False)[0]
    paths = [Path(choice.path) for choice in choices]
    for device, near in ((ReferenceDevice(), NEAR), (CpuDevice(DeviceOptions(n_workers=2)), HALVES)):
        with Player(device, golden, n_sequences=4, adapters=choices) as player:
            player.scales = STATED
            together = player.feed_together(texts(golden))
        ends = np.cumsum([len(tokens) for tokens in texts(golden).values()])
        for sequence, logits in zip(STATED, np.split(together, ends[:-1]), strict=True):
            scales = dict(zip(paths, STATED[sequence], strict=True))
            merged = write_merged(golden.model, tmp_path / f"merged-{sequence}.gguf", scales)
            with Player(ReferenceDevice(), replace(golden, model=merged)) as player:
                assert distance(logits, player.feed(texts(golden)[sequence])) < near


@pytest.mark.peer
@pytest.mark.parametrize("name", ["llama-f32", "qwen2-f32", "qwen3moe-f32"])
def test_llama_cpp_agrees_at_the_scale_of_each_sequence(name: str, tmp_path: Path) -> None:
    llama_cpp = pytest.importorskip("llama_cpp")
    golden = Golden.read(name)
    choice = AdapterChoice(str(write_adapter(golden.model, tmp_path / "adapter.gguf")))
    stated = {0: (0.3,), 1: (0.0,), 2: (-1.5,)}
    with Player(CpuDevice(DeviceOptions(n_workers=2)), golden, n_sequences=3, adapters=[choice]) as player:
        player.scales = stated
        together = player.feed_together(dict.fromkeys(stated, golden.tokens))
    sizes = {"n_ctx": golden.n_context, "n_threads": 1, "n_gpu_layers": 0}
    for (scale,), own in zip(stated.values(), np.split(together, len(stated)), strict=True):
        given = {"lora_path": choice.path, "lora_scale": scale} if scale else {}
        model = llama_cpp.Llama(str(golden.model), **given, **sizes, logits_all=True, verbose=False)
        try:
            model.eval(golden.tokens.tolist())
            assert distance(np.array(model.scores[: len(golden.tokens)]), own) < HALVES
        finally:
            model.close()


@pytest.mark.peer
@pytest.mark.parametrize("name", ["llama-f32", "qwen2-f32", "phi3-f32", "glm4-f32", "qwen3moe-f32"])
def test_llama_cpp_agrees(name: str, tmp_path: Path) -> None:
    llama_cpp = pytest.importorskip("llama_cpp")
    golden = Golden.read(name)
    wanted = embedding_too if golden.name.startswith(UNTIED) else adaptable
    choice = AdapterChoice(str(write_adapter(golden.model, tmp_path / "adapter.gguf", wanted=wanted)), 0.8)
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


@pytest.mark.peer
@pytest.mark.parametrize("name", ["llama-f32", "gemma2-f32", "granitemoe-f32"])
def test_llama_cpp_agrees_on_the_merged_model(name: str, tmp_path: Path) -> None:
    llama_cpp = pytest.importorskip("llama_cpp")
    golden = Golden.read(name)
    choices, merged = adapted(golden, tmp_path)
    with Player(ReferenceDevice(), golden, adapters=choices) as player:
        own = player.feed(golden.tokens)
    model = llama_cpp.Llama(str(merged), n_ctx=golden.n_context, n_threads=1, logits_all=True, verbose=False)
    try:
        model.eval(golden.tokens.tolist())
        assert distance(np.array(model.scores[: len(golden.tokens)]), own) < HALVES
    finally:
        model.close()
