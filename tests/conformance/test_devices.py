"""Every device of the registry: the same results as transformers where it computes, its pages, its memory, its end."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import get_args

import numpy as np
import pytest
from numpy.typing import NDArray

from edgeinfer.backends.base import DEVICES, Device, Limits, device_kinds, open_device
from edgeinfer.engine.run.executor import Executor
from edgeinfer.errors import DeviceUnavailable, UnsupportedModel
from edgeinfer.graph.step import PAGE
from edgeinfer.models.load import open_model
from edgeinfer.settings import KVKind
from tests.golden.golden_devices import opened, skip_refused
from tests.golden.goldens import ALL_OPS, LOST, PAGES, RESULTS, Golden, Player, distance
from tests.unit.engine.run.test_executor import chain

GOLDEN = "llama-q8_0"
FAMILIES = (
    "llama-k",
    "qwen2-q4_0",
    "gemma2-q8_0",
    "phi3-f16",
    "opt-q8_0",
    "llama-relu-q4_0",
    "llama-relu2-k",
    "qwen2moe-k",
    "olmoe-f16",
    "gpt-oss-q8_0",
    "lfm2-q8_0",
    "qwen35-q8_0",
    "granite-q8_0",
    "cohere2-q8_0",
    "olmo-q8_0",
    "glm4moe-q8_0",
    "openelm-q8_0",
    "minicpm3-q8_0",
    "afmoe-q8_0",
)
KEYS = tuple(device_kinds())


def by_turns(names: Iterable[str]) -> list[tuple[str, KVKind]]:
    """Each golden model with one kind of cached numbers, so that there are as many models with either."""
    return list(zip(names, itertools.cycle(get_args(KVKind))))


@pytest.fixture(params=get_args(KVKind))
def kv(request: pytest.FixtureRequest) -> KVKind:
    found: KVKind = request.param
    return found


def pages_of(player: Player) -> NDArray[np.uint8]:
    return player.lane.read_pages(np.arange(PAGES, dtype=np.int32)).copy()


def is_exact(device: Device, kv: KVKind) -> bool:
    """Whether pages come back bit for bit; a cache that rounds to 8 bits again at each writing may change the last."""
    return device.batch_invariant or kv == "f16"


def assert_same(
    device: Device, found: NDArray[np.float32], expected: NDArray[np.float32], tolerance: float = 1e-3
) -> None:
    """The same bits; or nearly so, where sums follow the order of rows in the cache."""
    if device.batch_invariant:
        assert found.tobytes() == expected.tobytes()
    assert distance(found, expected) < tolerance


def test_entries_are_named_and_described(key: str, device: Device) -> None:
    entry = DEVICES.get(key)
    assert entry.key == key == device.name
    assert entry.summary
    assert isinstance(device.batch_invariant, bool)


def test_a_program_that_runs_whole_models_is_no_device() -> None:
    with pytest.raises(DeviceUnavailable, match=r"llamacpp runs whole models .* cpu"):
        open_device("llamacpp")


def runnable(device: Device, name: str) -> Golden:
    """A golden model; skips those with ops that a device has not."""
    golden = Golden.read(name)
    skip_refused(device, golden)
    return golden


@pytest.mark.parametrize("key", [key for key in KEYS if key not in ALL_OPS])
@pytest.mark.parametrize(("name", "op"), [("olmoe-f16", "router"), ("lfm2-f32", "causal_conv")])
def test_what_a_device_has_not_is_refused_with_a_device_that_has_it(key: str, name: str, op: str) -> None:
    golden, limits = Golden.read(name), Limits(64, 1, 8, 8)
    device = opened(key)
    with open_model(golden.model, 64) as model:
        with pytest.raises(UnsupportedModel, match=f"{key} cannot run the op ({op}|experts): .* --device cpu"):
            device.compile(model.spec, model.file, limits)
        with pytest.raises(UnsupportedModel, match=f"{key} cannot run the op {op}"):
            device_kinds()[key].footprint(model.spec, model.file.tensors, limits)
    device.close()


def test_only_wanted_logits_are_given(device: Device) -> None:
    golden = Golden.read(GOLDEN)
    with open_model(golden.model, 128) as model:
        lane = device.compile(model.spec, model.file, Limits(128, 4, 32, 4))
        with Executor(device, lane, Limits(128, 4, 32, 4), "golden") as executor:
            sequence = executor.create()
            logits = executor.evaluate(chain(sequence, 0, golden.tokens[:20].tolist()))
            assert logits.shape == (1, model.spec.n_vocab)
            assert logits.dtype == np.float32


@pytest.mark.parametrize(("name", "kv"), by_turns(FAMILIES))
def test_logits_are_those_of_transformers_and_as_batch_invariant_as_the_device_says(
    computing: Device, name: str, kv: KVKind
) -> None:
    golden = runnable(computing, name)
    with Player(computing, golden, kv=kv) as player:
        whole = player.feed(golden.tokens)
    with Player(computing, golden, kv=kv) as player:
        parts = np.concatenate([player.feed(chunk) for chunk in np.split(golden.tokens, [1, 4, 13, 50])])
    assert golden.error(parts) < LOST[kv]
    if computing.batch_invariant:
        assert parts.tobytes() == whole.tobytes()
    assert distance(parts, whole) < 0.05


def test_pages_survive_reading_and_writing(computing: Device, kv: KVKind) -> None:
    golden = Golden.read(GOLDEN)
    with Player(computing, golden, kv=kv) as first, Player(computing, golden, kv=kv) as second:
        first.feed(golden.tokens[:70])
        pages = np.arange(PAGES, dtype=np.int32)
        contents = pages_of(first)
        assert contents.dtype == np.uint8
        assert contents.shape[0] == PAGES
        assert contents.any()
        second.feed(golden.tokens[-70:])  # puts the second where the first is, with other contents
        second.lane.write_pages(pages[::-1].copy(), contents[::-1].copy())
        if is_exact(computing, kv):
            assert pages_of(second).tobytes() == contents.tobytes()
        tolerance = 1e-3 if is_exact(computing, kv) else 5e-2
        assert_same(computing, second.feed(golden.tokens[70:]), first.feed(golden.tokens[70:]), tolerance)


def test_some_pages_are_written_and_no_others(computing: Device, kv: KVKind) -> None:
    golden = Golden.read(GOLDEN)
    with Player(computing, golden, kv=kv) as player:
        player.feed(golden.tokens)
        before = pages_of(player)
        chosen = np.array([7, 2], np.int32)
        replacement = before[chosen[::-1]].copy()
        player.lane.write_pages(chosen, replacement)
        after = pages_of(player)
        others = np.setdiff1d(np.arange(PAGES), chosen)
        if is_exact(computing, kv):
            assert np.array_equal(after[chosen], replacement)
            assert np.array_equal(after[others], before[others])
        assert np.array_equal(after[chosen].any(axis=1), replacement.any(axis=1))
        assert np.array_equal(after[others].any(axis=1), before[others].any(axis=1))


def test_copied_slots_take_the_place_of_others(computing: Device, kv: KVKind) -> None:
    """A sequence whose keys and values are copied, slot by slot, to other pages goes on as before."""
    golden = Golden.read(GOLDEN)
    with Player(computing, golden, kv=kv) as player, Player(computing, golden, kv=kv) as plain:
        player.feed(golden.tokens[:70])
        plain.feed(golden.tokens[:70])
        table = player._tables[0]
        sources = np.concatenate([page * PAGE + np.arange(PAGE) for page in table[:2]])[:70].astype(np.int32)
        free = np.setdiff1d(np.arange(PAGES), table[:2])[:2].astype(np.int32)
        targets = np.concatenate([page * PAGE + np.arange(PAGE) for page in free])[:70].astype(np.int32)
        mixed = np.random.default_rng(0).permutation(70)
        player.lane.copy_slots(sources[mixed], targets[mixed])
        player.lane.write_pages(table[:2], np.zeros_like(pages_of(player)[:2]))
        table[[0, 1]] = free
        assert_same(computing, player.feed(golden.tokens[70:]), plain.feed(golden.tokens[70:]))


@pytest.mark.parametrize(("name", "kv"), by_turns(path.stem for path in RESULTS if "@" not in path.stem))
def test_footprints_are_what_lanes_hold(key: str, device: Device, name: str, kv: KVKind) -> None:
    golden = runnable(device, name)
    limits = Limits(golden.n_context, 5, 40, 20, kv)
    with open_model(golden.model, golden.n_context) as model:
        expected = DEVICES.get(key).footprint(model.spec, model.file.tensors, limits)
        lane = device.compile(model.spec, model.file, limits)
        parts = expected.weight_bytes, expected.kv_bytes, expected.buffer_bytes, expected.state_bytes
        assert lane.resident_bytes == sum(parts)
        assert expected.kv_bytes == expected.kv_bytes_per_token * limits.n_pages * PAGE
        lane.close()


def test_lanes_of_one_device_do_not_share_a_cache(computing: Device) -> None:
    golden = Golden.read(GOLDEN)
    with Player(computing, golden) as first, Player(computing, golden) as second:
        expected = first.feed(golden.tokens[:40]).copy()
        assert distance(second.feed(golden.tokens[:40][::-1].copy()), expected) > 0.1
        again = first.feed(golden.tokens[40:])
    with Player(computing, golden) as alone:
        alone.feed(golden.tokens[:40])
        assert distance(again, alone.feed(golden.tokens[40:])) < 1e-6


def test_closing_twice_is_safe(device: Device) -> None:
    golden = Golden.read(GOLDEN)
    with open_model(golden.model, golden.n_context) as model:
        lane = device.compile(model.spec, model.file, Limits(golden.n_context, 4, 8, 8))
        lane.close()
        lane.close()
    device.close()
