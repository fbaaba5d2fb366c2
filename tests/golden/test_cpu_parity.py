"""The CPU device on every golden model: as exact as the reference with the same rounding, and always the same bits."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from edgeinfer.backends.base import DeviceOptions
from edgeinfer.backends.cpu import catalogue
from edgeinfer.backends.cpu.device import CpuDevice
from edgeinfer.backends.cpu.lanes.lane import CpuLane
from edgeinfer.backends.cpu.lowering.needs import WORKER_POOL, kernels_of
from edgeinfer.backends.reference import ReferenceDevice
from edgeinfer.jit.cpu import cpu_features
from tests.golden.golden_devices import OF_ALL_ISAS
from tests.golden.goldens import BRANCHING, ONE_BY_ONE, PATHS, RESULTS, Golden, Player, distance
from tests.golden.replay import RecordingDevice, Replay
from tests.unit.backends.cpu.kernel_calls import DISTINCT

Floats = NDArray[np.float32]

NAMES = [path.stem for path in RESULTS]
FAMILIES = (
    "llama-q4_0",
    "llama-k",
    "llama-low",
    "mixtral-low",
    "mistral-window-q8_0",
    "qwen3-k",
    "gemma2-k",
    "gemma3-q4_0",
    "qwen2-f16",
    "mixtral-f16",
    "qwen2moe-q4_0",
    "qwen3moe-k",
    "olmoe-q8_0",
    "gpt-oss-q4_0",
    "gpt-oss-bf16",
    "lfm2-q4_0",
    "lfm2-f32",
    "qwen35-q8_0",
    "qwen35-k",
    "opt-q4_0",
    "granite-mix",
    "cohere2-q8_0",
    "glm4moe-q8_0",
    "openelm-mix",
    "minicpm3-q8_0",
    "minicpm3-mix",
    "deepseek2-q8_0",
    "deepseek2-f32",
    "afmoe-q8_0",
    "afmoe-mix",
    "gemma4-q8_0",
    "gemma4-small-q8_0",
    "gemma4-moe-q8_0",
    "gemma3n-q8_0",
    "llama4-q8_0",
    "llama4-f32",
)
CHUNKS = ([5, 6, 29, 45], [8, 17, 25, 26, 28, 31, 35], [1, 64, 66], ONE_BY_ONE)


@pytest.fixture(scope="module")
def device() -> CpuDevice:
    return CpuDevice(DeviceOptions(n_workers=3))


@pytest.fixture(params=NAMES)
def golden(request: pytest.FixtureRequest) -> Golden:
    return Golden.read(request.param)


@pytest.fixture(params=FAMILIES)
def family(request: pytest.FixtureRequest) -> Golden:
    return Golden.read(request.param)


def in_one_pass(device: CpuDevice, golden: Golden, worker_pool_size: int = 2) -> Floats:
    with Player(device, golden) as player:
        player.lane.worker_pool_size = worker_pool_size  # type: ignore[attr-defined]
        return player.feed(golden.tokens)


def same_bits(first: Floats, second: Floats) -> bool:
    return first.shape == second.shape and first.tobytes() == second.tobytes()


def test_logits_equal_the_reference_with_the_same_rounding(device: CpuDevice, golden: Golden) -> None:
    """And are as near transformers as rounded activations allow."""
    replay = Replay()
    chunks = np.split(golden.tokens, [7, 8, 40])
    with Player(RecordingDevice(device, replay), golden) as player:
        logits = np.concatenate([player.feed(chunk) for chunk in chunks])
    assert same_bits(logits, in_one_pass(device, golden))
    with Player(ReferenceDevice("int8", "f16", replay.rounding), golden) as player:
        expected = np.concatenate([player.feed(chunk) for chunk in chunks])
    assert replay.is_used_up
    assert distance(logits, expected) < 1e-5
    with Player(ReferenceDevice("int8", "f16"), golden) as player:
        rounding_error = golden.error(player.feed(golden.tokens))
    assert golden.error(logits) < 1.5 * rounding_error
    assert rounding_error < 0.1


def test_the_kernels_of_a_tape_are_known_before_its_memory_is_there(device: CpuDevice, golden: Golden) -> None:
    with Player(device, golden) as player:
        lane = player.lane
        assert isinstance(lane, CpuLane)
        calls = list(lane._every_call())
        calls += lane._lowering.advances()
        called = {each.name for call in calls for each in (call.kernel, call.calls) if each is not None}
        told = {each.name for each in kernels_of(lane._spec, lane._file.tensors, "f16", device.isa)}
    beside = {each.name for each in (*WORKER_POOL, catalogue.PACK_PANELS, catalogue.copy_slots("f16"))}
    assert told - beside == called


def test_a_token_has_the_same_bits_in_any_chunk(device: CpuDevice, family: Golden) -> None:
    whole = in_one_pass(device, family)
    with Player(device, family) as player:
        for cuts in CHUNKS:
            player.begin()
            rows = []
            for number, chunk in enumerate(np.split(family.tokens, cuts)):
                player.lane.worker_pool_size = number % 3 + 1  # type: ignore[attr-defined]
                rows.append(player.feed(chunk))
            assert same_bits(np.concatenate(rows), whole)


@pytest.mark.parametrize("n_cached", [20, 60])
def test_a_tree_node_has_the_bits_of_its_path(device: CpuDevice, family: Golden, n_cached: int) -> None:
    prefix, tokens = family.tokens[:n_cached], family.tokens[n_cached - 12 : n_cached]
    with Player(device, family) as player:
        player.feed(prefix)
        tree = player.look(tokens, BRANCHING)
        small = player.look(tokens[:7], BRANCHING[:7])  # small passes share attention out otherwise
        assert same_bits(small, tree[:7])
        for path in PATHS:
            player.begin()
            plain = player.feed(np.concatenate([prefix, tokens[path]]))
            assert same_bits(tree[path], plain[n_cached:])


def test_sequences_of_one_pass_have_the_bits_they_have_alone(device: CpuDevice, family: Golden) -> None:
    first, second = family.tokens[:30], family.tokens[30:]
    with Player(device, family, n_sequences=2) as player:
        player.feed(first[:11], 0)
        together = player.feed_together({0: first[11:], 1: second})
    with Player(device, family, n_sequences=2) as player:
        alone = [player.feed(first, 0)[11:], player.feed(second, 1)]
    assert same_bits(together, np.concatenate(alone))


def test_any_number_of_workers_gives_the_same_bits(family: Golden) -> None:
    results = [in_one_pass(CpuDevice(DeviceOptions(n_workers=n)), family, n) for n in (1, 2, 3, 5)]
    assert all(same_bits(result, results[0]) for result in results)


ANOTHER_CPU = """
import sys
from edgeinfer.backends.base import DeviceOptions
from edgeinfer.backends.cpu.device import CpuDevice
from tests.golden.goldens import Golden, Player
device = CpuDevice(DeviceOptions())
assert device.isa == "avx2"
golden = Golden.read(sys.argv[1])
with Player(device, golden) as player:
    print(player.feed(golden.tokens).tobytes().hex())
"""


def test_a_cpu_without_avx512_gives_the_same_bits(device: CpuDevice) -> None:
    """All code compiled for AVX2 alone, vectors split in two, in a process of its own."""
    if "avx2" not in cpu_features():
        pytest.skip("this CPU cannot run AVX2 code")
    golden = Golden.read("gemma2-q4_0")
    environment = {**os.environ, "NUMBA_CPU_NAME": "haswell", "NUMBA_CPU_FEATURES": "+avx2,+fma,+f16c"}
    command = [sys.executable, "-c", ANOTHER_CPU, golden.name]
    root = Path(__file__).parents[2]
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=True)
    assert bytes.fromhex(done.stdout) == in_one_pass(device, golden).tobytes()


@pytest.mark.parametrize("name", OF_ALL_ISAS)
def test_any_instruction_set_gives_the_same_bits(device: CpuDevice, name: str) -> None:
    golden = Golden.read(name)
    whole = in_one_pass(device, golden)
    assert "portable" in DISTINCT
    for isa in DISTINCT:
        assert same_bits(in_one_pass(CpuDevice(DeviceOptions(), isa), golden), whole)
