"""The CPU device with rounded keys and values: exact as the reference that rounds alike, and always the same bits."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from edgeinfer.backends.base import DeviceOptions
from edgeinfer.backends.cpu.device import CpuDevice
from edgeinfer.backends.reference import ReferenceDevice
from edgeinfer.engine.kv.limits import limits_for
from edgeinfer.engine.opening.devices import OpeningRequest
from edgeinfer.engine.opening.evaluator import open_executor
from edgeinfer.engine.run.executor import Executor
from edgeinfer.errors import EdgeInferError
from edgeinfer.models.file_facts import fingerprint
from edgeinfer.models.load import open_model
from edgeinfer.settings import KVKind
from tests.golden.goldens import BRANCHING, LOST, ONE_BY_ONE, PATHS, RESULTS, Golden, Player, distance
from tests.golden.replay import RecordingDevice, Replay
from tests.unit.backends.cpu.kernel_calls import DISTINCT, SINGLE_KINDS
from tests.unit.engine.run.test_executor import chain

Floats = NDArray[np.float32]

NAMES = list({path.stem.rpartition("-")[0]: path.stem for path in RESULTS}.values())
"""One format of each family: how keys and values are rounded does not depend on that of weights."""
FAMILIES = (
    *("llama-q4_0", "mistral-window-q8_0", "qwen3-k", "gemma2-k", "gemma3-q4_0", "phi3-f16", "minicpm3-mix"),
    "deepseek2-q8_0",
    "gemma4-q8_0",
)
ROUNDED: list[tuple[str, KVKind]] = [
    *((name, "q8") for name in NAMES),
    *((name, kind) for name in FAMILIES for kind in LOST if kind not in ("f16", "q8")),
]


@pytest.fixture(scope="module")
def device() -> CpuDevice:
    return CpuDevice(DeviceOptions(n_workers=3))


@pytest.fixture(params=FAMILIES)
def family(request: pytest.FixtureRequest) -> Golden:
    return Golden.read(request.param)


@pytest.fixture(params=[kind for kind in LOST if kind != "f16"])
def kv(request: pytest.FixtureRequest) -> KVKind:
    found: KVKind = request.param
    return found


def played(device: CpuDevice, golden: Golden, kv: KVKind, cuts: list[int], worker_pool_size: int = 2) -> Floats:
    with Player(device, golden, kv=kv) as player:
        player.lane.worker_pool_size = worker_pool_size  # type: ignore[attr-defined]
        return np.concatenate([player.feed(chunk) for chunk in np.split(golden.tokens, cuts)])


def same_bits(first: Floats, second: Floats) -> bool:
    return first.shape == second.shape and first.tobytes() == second.tobytes()


@pytest.mark.parametrize(("name", "kv"), ROUNDED)
def test_logits_equal_the_reference_with_the_same_rounding(device: CpuDevice, name: str, kv: KVKind) -> None:
    golden, replay = Golden.read(name), Replay()
    chunks = np.split(golden.tokens, [7, 8, 40])
    with Player(RecordingDevice(device, replay), golden, kv=kv) as player:
        logits = np.concatenate([player.feed(chunk) for chunk in chunks])
    assert same_bits(logits, played(device, golden, kv, []))
    with Player(ReferenceDevice("int8", kv, replay.rounding), golden) as player:
        expected = np.concatenate([player.feed(chunk) for chunk in chunks])
    assert replay.is_used_up
    assert distance(logits, expected) < 1e-5
    assert golden.error(logits) < LOST[kv]


def test_it_is_another_rounding_than_f16(device: CpuDevice, family: Golden, kv: KVKind) -> None:
    with Player(device, family) as player:
        assert 1e-4 < distance(played(device, family, kv, []), player.feed(family.tokens)) < LOST[kv]


def test_a_token_has_the_same_bits_in_any_chunk_with_any_worker_pool(
    device: CpuDevice, family: Golden, kv: KVKind
) -> None:
    whole = played(device, family, kv, [], 1)
    for cuts, worker_pool_size in (([5, 6, 29, 45], 1), ([8, 17, 25, 26, 28, 31, 35], 3), (ONE_BY_ONE, 2)):
        assert same_bits(played(device, family, kv, cuts, worker_pool_size), whole)


@pytest.mark.parametrize("n_cached", [20, 60])
def test_a_tree_node_has_the_bits_of_its_path(device: CpuDevice, family: Golden, kv: KVKind, n_cached: int) -> None:
    prefix, tokens = family.tokens[:n_cached], family.tokens[n_cached - 12 : n_cached]
    with Player(device, family, kv=kv) as player:
        player.feed(prefix)
        tree = player.look(tokens, BRANCHING)
        small = player.look(tokens[:7], BRANCHING[:7])  # small passes share attention out otherwise
        assert same_bits(small, tree[:7])
        for path in PATHS:
            player.begin()
            plain = player.feed(np.concatenate([prefix, tokens[path]]))
            assert same_bits(tree[path], plain[n_cached:])


@pytest.mark.parametrize("kv", [kind for kind in SINGLE_KINDS if kind != "f16"])
@pytest.mark.parametrize("name", ["llama-q8_0", "gemma2-q4_0"])
def test_any_instruction_set_gives_the_same_bits(device: CpuDevice, name: str, kv: KVKind) -> None:
    golden = Golden.read(name)
    whole = played(device, golden, kv, [])
    for isa in DISTINCT:
        assert same_bits(played(CpuDevice(DeviceOptions(), isa), golden, kv, []), whole)


def opened(golden: Golden, path: Path, kv: KVKind) -> Executor:
    limits = limits_for(golden.n_context, kv=kv)
    with open_model(path, golden.n_context) as model:
        request = OpeningRequest(model.spec, model.file, limits)
        return open_executor("reference", request, fingerprint(model.file))


def test_a_saved_state_belongs_to_its_kv(kv: KVKind) -> None:
    golden = Golden.read("llama-q8_0")
    with opened(golden, golden.model, "f16") as plain, opened(golden, golden.model, kv) as rounded:
        states = {}
        for executor in (plain, rounded):
            sequence = executor.create()
            executor.evaluate(chain(sequence, 0, golden.tokens[:9].tolist()))
            executor.commit(sequence, np.arange(9, dtype=np.int32))
            states[executor] = executor.save(sequence)
        with pytest.raises(EdgeInferError, match=f"its kv is f16, not {kv}"):
            rounded.restore(rounded.create(), states[plain])
        with pytest.raises(EdgeInferError, match=f"its kv is {kv}, not f16"):
            plain.restore(plain.create(), states[rounded])
        target = rounded.create()
        rounded.restore(target, states[rounded])
        assert rounded.n_cached(target) == 9
