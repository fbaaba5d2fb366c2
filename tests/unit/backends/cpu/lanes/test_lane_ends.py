"""How a lane that streams ends, whatever ends it: no thread reads on, no memory stays; and reads that fail before."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from edgeinfer.backends.base import DeviceOptions
from edgeinfer.backends.cpu.bundles import contents
from edgeinfer.backends.cpu.device import CpuDevice
from edgeinfer.backends.cpu.lanes import lane as lanes
from edgeinfer.backends.cpu.lanes.streamed import Bundles, StreamedLane
from edgeinfer.errors import DeviceFailed
from edgeinfer.jit.code import CompiledFunction, Kernel
from edgeinfer.jit.library import KernelLibrary
from edgeinfer.offload.bundle import Bundle
from edgeinfer.steps import Progress
from tests.golden.goldens import Golden, Player
from tests.golden.streamed_devices import Streamer

GOLDEN = Golden.read("llama-q4_0")
MIXTURE = Golden.read("qwen2moe-q4_0")


@pytest.fixture(autouse=True)
def small_bundles(monkeypatch: pytest.MonkeyPatch) -> None:
    """These models are tiny: cut them as finely as if they were large."""
    monkeypatch.setattr(contents, "SMALLEST_BYTES", 6000)


def lane_of(player: Player) -> StreamedLane:
    assert isinstance(player.lane, StreamedLane)
    return player.lane


def readers() -> list[str]:
    """Threads that read."""
    names = [thread.name for thread in threading.enumerate()]
    return [name for name in names if name.startswith(("edgeinfer-read", "edgeinfer-experts"))]


@pytest.mark.parametrize("golden", [GOLDEN, MIXTURE], ids=lambda golden: golden.name)
def test_closing_gives_the_memory_back_though_the_lane_is_still_known(golden: Golden, tmp_path: Path) -> None:
    with Player(Streamer(tmp_path / "model.bundles", 0.3), golden) as player:
        lane = lane_of(player)
        player.feed(golden.tokens[:5])
        held = [lane._pinned._memory, lane._ring, lane._packed]
        if lane._mixtures is not None:
            held.append(lane._mixtures._cache._memory)
        assert readers()
        known = [weakref.ref(each) for each in held]
        held.clear()
        lane.close()
        assert [each() for each in known] == [None] * len(known)
        assert not readers()


def test_closing_gives_packed_weights_back() -> None:
    with Player(CpuDevice(DeviceOptions(n_workers=1)), GOLDEN) as player:
        assert isinstance(player.lane, lanes.CpuLane)
        packed = weakref.ref(player.lane._packed)
        player.lane.close()
        assert packed() is None


@pytest.mark.parametrize("golden", [GOLDEN, MIXTURE], ids=lambda golden: golden.name)
def test_a_lane_that_cannot_be_made_leaves_no_threads(
    golden: Golden, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[str] = []

    def no_room(*_: object) -> None:
        begun.extend(readers())
        raise MemoryError

    monkeypatch.setattr(lanes, "CpuLowering", no_room)
    with pytest.raises(MemoryError):
        Player(Streamer(tmp_path / "model.bundles", 0.3), golden)
    assert begun
    assert not readers()


def test_a_read_error_while_bundles_are_taken_again_ends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Player(CpuDevice(DeviceOptions(n_workers=2)), GOLDEN) as player:
        expected, then = player.feed(GOLDEN.tokens[:9]), player.feed(GOLDEN.tokens[9:10])
    read = Bundles.read

    def broken(source: Bundles, bundle: Bundle, into: memoryview) -> None:
        if bundle.number == max(all_pinned):
            raise DeviceFailed(f"bundle {bundle.number} cannot be read")
        read(source, bundle, into)

    with Player(Streamer(tmp_path / "model.bundles", 0.8), GOLDEN) as player:
        lane = lane_of(player)
        all_pinned = frozenset(lane.pinned)
        lane.pin(frozenset())
        with monkeypatch.context() as patch:
            patch.setattr(Bundles, "read", broken)
            with pytest.raises(DeviceFailed, match="cannot be read"):
                lane.pin(all_pinned)
        assert not lane.pinned
        assert np.array_equal(player.feed(GOLDEN.tokens[:9]), expected)
        lane.pin(all_pinned)
        assert frozenset(lane.pinned) == all_pinned
        assert np.array_equal(player.feed(GOLDEN.tokens[9:10]), then)


@pytest.mark.parametrize("name", ["llama-q4_0", "qwen2moe-q4_0", "llama-relu-sparse-q4_1"])
def test_everything_that_is_compiled_is_asked_for_at_once(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is not is compiled in this process, one after the other, with nothing said."""
    prepare, find = KernelLibrary.prepare, KernelLibrary.address
    prepared: set[str] = set()
    found: set[str] = set()

    def preparing(
        library: KernelLibrary, wanted: Sequence[Kernel | CompiledFunction], count: int, progress: Progress
    ) -> None:
        prepared.update(each.name for each in wanted)
        prepare(library, wanted, count, progress)

    def finding(library: KernelLibrary, wanted: Kernel | CompiledFunction) -> int:
        found.add(wanted.name)
        return find(library, wanted)

    monkeypatch.setattr(KernelLibrary, "prepare", preparing)
    monkeypatch.setattr(KernelLibrary, "address", finding)
    golden = Golden.read(name)
    with Player(Streamer(tmp_path / "model.bundles", 0.3), golden) as player:
        player.feed(golden.tokens[:5])
    assert found
    assert found <= prepared
