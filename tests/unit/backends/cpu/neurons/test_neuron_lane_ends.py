"""How a lane that reads neurons ends: no thread reads on, and no memory stays."""

from __future__ import annotations

import threading
import weakref
from pathlib import Path

import pytest

from edgeinfer.backends.cpu.bundles import contents
from edgeinfer.backends.cpu.lanes.streamed import StreamedLane
from edgeinfer.backends.cpu.neurons.reading import NeuronReading
from tests.golden.goldens import Golden, Player
from tests.golden.streamed_devices import Streamer

SPARSE = Golden.read("llama-relu-sparse-q4_1")


def readers() -> list[str]:
    """Threads that read bundles or neurons."""
    names = [thread.name for thread in threading.enumerate()]
    return [name for name in names if name.startswith(("edgeinfer-read", "edgeinfer-neurons"))]


def test_closing_gives_the_memory_of_neurons_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contents, "SMALLEST_BYTES", 6000)  # as finely cut as a large model
    with Player(Streamer(tmp_path / "model.bundles", 0.3), SPARSE) as player:
        lane = player.lane
        assert isinstance(lane, StreamedLane)
        player.feed(SPARSE.tokens[:5])
        assert isinstance(lane._records, NeuronReading)
        window = lane._records._window
        held = [lane._pinned._memory, lane._ring, lane._packed, window._pages]
        held += [layer.memory for layer in window._layers]
        assert len(readers()) > 1
        known = [weakref.ref(each) for each in held]
        held.clear()
        lane.close()
        assert [each() for each in known] == [None] * len(known)
        assert not readers()
