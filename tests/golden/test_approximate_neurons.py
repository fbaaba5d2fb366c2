"""Approximate models whose neurons are read from disk: the bits of the model in memory."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from edgeinfer.backends.base import DeviceOptions
from edgeinfer.backends.cpu.device import CpuDevice
from edgeinfer.backends.cpu.lanes.streamed import StreamedLane
from tests.golden.few_neurons import FewNeurons
from tests.golden.goldens import Player
from tests.golden.test_approximate_goldens import BY_NEURONS, Approximate


@pytest.mark.parametrize("share", [0.05, 1.0])
@pytest.mark.parametrize("path", BY_NEURONS, ids=lambda path: path.stem)
def test_neurons_from_disk_give_the_bits_of_the_model_in_memory(path: Path, share: float, tmp_path: Path) -> None:
    approximate, chunks = Approximate(path), [1, 2, 3, 40]
    whole, _ = approximate.play(CpuDevice(DeviceOptions(n_workers=2)), [])
    with Player(FewNeurons(tmp_path / "it.bundles", share), approximate.golden, approximate.spec) as player:
        streamed = [player.feed(part) for part in np.split(approximate.golden.tokens, chunks)]
        assert isinstance(player.lane, StreamedLane)
        reading, (n_all, n_kept) = player.lane.reading, player.lane.activations
    assert np.concatenate(streamed).tobytes() == whole.tobytes()
    assert reading.n_records_read > 0
    assert reading.record_token_bytes % n_kept == 0  # those that fire are those that were kept
    assert 0 < n_kept < n_all
