"""Models whose weights come from a bundle file in part: the same bits as from memory, however little may stay."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from edgeinfer.backends.base import DeviceOptions, Lane, Limits, Progress, no_progress
from edgeinfer.backends.cpu.bundles import contents
from edgeinfer.backends.cpu.bundles.contents import contents_of
from edgeinfer.backends.cpu.bundles.writing import pack_bundles
from edgeinfer.backends.cpu.device import CpuDevice
from edgeinfer.backends.cpu.streaming.lane import StreamedLane
from edgeinfer.backends.cpu.streaming.neuron_reads import least_bytes, runs_of
from edgeinfer.backends.cpu.streaming.neurons import reading_bytes
from edgeinfer.backends.stored import Reading, Stored, Streaming
from edgeinfer.engine.fingerprint import fingerprint
from edgeinfer.engine.residency import residency_of
from edgeinfer.models.gguf import GGUFFile
from edgeinfer.models.spec import ModelSpec
from edgeinfer.scheduling.small_reads import SMALL_READERS
from tests.golden.goldens import Golden, Player

MODELS = (
    "llama-q4_0",
    "llama-f16",
    "gemma2-k",
    "phi3-q8_0",
    "qwen2-yarn-q8_0",
    "opt-q4_0",
    "opt-q8_0",
    "opt-f16",
    "opt-sparse-q4_0",
    "llama-relu-q4_0",
    "llama-relu-f16",
    "llama-relu-sparse-q4_1",
    "llama-relu-sparse-q8_0",
    "llama-relu2-q8_0",
    "llama-relu2-k",
    "mixtral-f16",
    "qwen2moe-q4_0",
    "qwen3moe-k",
    "olmoe-q8_0",
)
BRANCHING = [-1, 0, 1, 0, 3, 2, -1, 6, 7, 7, 4, 5]


@dataclass(slots=True)
class Streamer:
    """The cpu device with a share of what there is between the least memory for weights and all of it."""

    folder: Path
    share: float
    n_workers: int = 2
    name: str = "cpu"
    batch_invariant: bool = True

    def compile(self, spec: ModelSpec, file: GGUFFile, limits: Limits, progress: Progress = no_progress) -> Lane:
        device, held_in = CpuDevice(DeviceOptions(n_workers=self.n_workers)), contents_of(spec, file.tensors)
        path, identity = self.folder / "model.bundles", fingerprint(file)
        if not path.exists():
            pack_bundles(path, file, held_in, identity, device.library, 2, progress)
        dense = [bundle.padded_bytes for bundle in held_in.bundles if bundle.is_dense]
        runs = [bundle.padded_bytes for bundle in held_in.bundles if bundle.run and bundle.run.count]
        slot = max((bundle.padded_bytes for bundle in held_in.experts), default=0)
        least = 2 * max(dense) + (8 * slot if slot else 0)
        least += sum(bundle.padded_bytes for bundle in held_in.bundles if bundle.stays)
        budget = int(least + self.share * (held_in.data_bytes - sum(runs) - least))
        layers = runs_of(held_in)
        budget += (least_bytes(layers) + reading_bytes(layers, SMALL_READERS)) if layers else 0
        found = residency_of(held_in, spec, budget, None, "it")
        held = sum(held_in.bundles[number].padded_bytes for number in found.pinned)
        sizes = held, found.window_bytes, found.n_readers, found.n_experts * slot, found.neuron_bytes
        stored = Stored(path, identity, found.pinned, *sizes, SMALL_READERS, 4096)
        return device.compile(spec, file, replace(limits, stored=stored), progress)

    def close(self) -> None:
        """Lanes own the threads."""


@pytest.fixture(scope="module", autouse=True)
def small_bundles() -> Iterator[None]:
    """These models are tiny: cut them as finely as if they were large."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(contents, "SMALLEST_BYTES", 6000)
        yield


@pytest.fixture(scope="module", params=MODELS)
def golden(request: pytest.FixtureRequest) -> Golden:
    return Golden.read(request.param)


@pytest.fixture(scope="module")
def expected(golden: Golden) -> list[np.ndarray]:
    with Player(CpuDevice(DeviceOptions(n_workers=2)), golden) as player:
        return answers(player, golden)


@pytest.fixture(scope="module")
def folder(golden: Golden, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp(golden.name)


def answers(player: Player, golden: Golden) -> list[np.ndarray]:
    """Logits of a prompt, of tokens one by one, and of a tree."""
    tokens = golden.tokens
    found = [player.feed(tokens[:30])]
    found += [player.feed(tokens[place : place + 1]) for place in range(30, 36)]
    found.append(player.look(tokens[36:48], BRANCHING))
    return found


def reading_of(player: Player) -> Reading:
    assert isinstance(player.lane, Streaming)
    return player.lane.reading


@pytest.mark.parametrize("share", [0.0, 0.3, 0.8])
def test_same_bits_as_from_memory(golden: Golden, expected: list[np.ndarray], folder: Path, share: float) -> None:
    with Player(Streamer(folder, share), golden) as player:
        found = answers(player, golden)
        assert reading_of(player).n_bytes > 0
    assert all(np.array_equal(one, other) for one, other in zip(found, expected, strict=True))


def test_bits_stay_when_bundles_are_given_back(golden: Golden, expected: list[np.ndarray], folder: Path) -> None:
    with Player(Streamer(folder, 0.8), golden) as player:
        assert isinstance(player.lane, StreamedLane)
        all_pinned = frozenset(player.lane.pinned)
        staying = frozenset(bundle.number for bundle in player.lane.contents.bundles if bundle.stays)
        for kept in (frozenset(sorted(all_pinned)[::2]), frozenset[int](), all_pinned):
            player.lane.pin(kept)
            assert set(player.lane.pinned) == kept | staying
        found = answers(player, golden)
    assert all(np.array_equal(one, other) for one, other in zip(found, expected, strict=True))


@pytest.mark.parametrize("n_workers", [1, 3])
def test_bits_do_not_depend_on_workers(
    golden: Golden, expected: list[np.ndarray], folder: Path, n_workers: int
) -> None:
    with Player(Streamer(folder, 0.2, n_workers), golden) as player:
        found = answers(player, golden)
    assert all(np.array_equal(one, other) for one, other in zip(found, expected, strict=True))
