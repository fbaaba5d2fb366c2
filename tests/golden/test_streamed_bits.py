"""Models whose weights come from a bundle file in part: the same bits as from memory, however little may stay."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from edgeinfer.backends.base import DeviceOptions
from edgeinfer.backends.cpu.bundles import contents
from edgeinfer.backends.cpu.device import CpuDevice
from edgeinfer.backends.cpu.lanes.streamed import StreamedLane
from edgeinfer.offload.weights import WeightReads
from tests.golden.goldens import BRANCHING, Golden, Player
from tests.golden.streamed_devices import Streamer

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
    "gpt-oss-q4_0",
    "afmoe-mix",
    "gemma4-small-q8_0",
    "gemma4-moe-q8_0",
    "gemma3n-q8_0",
)


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
def path(golden: Golden, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp(golden.name) / "model.bundles"


def answers(player: Player, golden: Golden) -> list[np.ndarray]:
    """Logits of a prompt, of tokens one by one, and of a tree."""
    tokens = golden.tokens
    found = [player.feed(tokens[:30])]
    found += [player.feed(tokens[place : place + 1]) for place in range(30, 36)]
    found.append(player.look(tokens[36:48], BRANCHING))
    return found


def reading_of(player: Player) -> WeightReads:
    streaming = player.lane.capabilities.streaming
    assert streaming is not None
    return streaming.reading


@pytest.mark.parametrize("share", [0.0, 0.3, 0.8])
def test_same_bits_as_from_memory(golden: Golden, expected: list[np.ndarray], path: Path, share: float) -> None:
    with Player(Streamer(path, share), golden) as player:
        found = answers(player, golden)
        assert reading_of(player).n_bytes > 0
    assert all(np.array_equal(one, other) for one, other in zip(found, expected, strict=True))


@pytest.mark.parametrize("share", [0.8, 2.0])  # or all of them, and no ring to read others into
def test_bits_stay_when_bundles_are_given_back(
    golden: Golden, expected: list[np.ndarray], path: Path, share: float
) -> None:
    with Player(Streamer(path, share), golden) as player:
        assert isinstance(player.lane, StreamedLane)
        all_pinned = frozenset(player.lane.pinned)
        staying = frozenset(bundle.number for bundle in player.lane.contents.bundles if bundle.stays)
        kept_last = all_pinned if share < 1 else frozenset[int]()
        for kept in (frozenset(sorted(all_pinned)[::2]), frozenset[int](), kept_last):
            player.lane.pin(kept)
            assert set(player.lane.pinned) == kept | staying
        found = answers(player, golden)
    assert all(np.array_equal(one, other) for one, other in zip(found, expected, strict=True))


def test_bits_stay_when_experts_are_given_back(golden: Golden, expected: list[np.ndarray], path: Path) -> None:
    with Player(Streamer(path, 0.8), golden) as player:
        streaming = player.lane.capabilities.streaming
        assert streaming is not None
        most = streaming.cache_bytes
        streaming.resize_cache(0)
        least = streaming.cache_bytes
        assert 0 < least <= most or least == most == 0
        streaming.resize_cache(most)
        assert streaming.cache_bytes == most
        found = [player.feed(golden.tokens[:30])]
        streaming.resize_cache(0)
        found += [player.feed(golden.tokens[place : place + 1]) for place in range(30, 36)]
        assert streaming.cache_bytes == least
    assert all(np.array_equal(one, other) for one, other in zip(found, expected, strict=False))


@pytest.mark.parametrize("n_workers", [1, 3])
def test_bits_do_not_depend_on_workers(golden: Golden, expected: list[np.ndarray], path: Path, n_workers: int) -> None:
    with Player(Streamer(path, 0.2, n_workers), golden) as player:
        found = answers(player, golden)
    assert all(np.array_equal(one, other) for one, other in zip(found, expected, strict=True))
