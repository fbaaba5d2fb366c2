"""Models whose small activations count as zero: transformers with a hook says the same, in memory and from disk."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from edgeinfer.backends.base import Device, DeviceOptions
from edgeinfer.backends.cpu.device import CpuDevice
from edgeinfer.backends.cpu.lanes.lane import CpuLane
from edgeinfer.backends.reference import ReferenceDevice
from edgeinfer.graph.graph import ModelSpec
from edgeinfer.models.load import open_model
from tests.golden.goldens import DATA, Golden, Player, distance
from tests.golden.replay import RecordingDevice, Replay

APPROXIMATE = sorted((DATA / "approx").glob("*.npz"))
BY_NEURONS = [path for path in APPROXIMATE if path.stem.partition("@")[0].endswith(("q8_0", "q4_0"))]
BORDER, BORDER_INT8 = 1e-3, 2e-2
"""Share of activations that may lie on the other side of a threshold where keys, or activations too, are rounded."""


class Approximate:
    """A golden with its threshold and the share of activations that it leaves out."""

    def __init__(self, path: Path) -> None:
        with np.load(path) as held:
            self.threshold, self.zeros = float(held["threshold"]), float(held["zeros"])
            arrays = (held[key] for key in ("tokens", "columns", "logits", "last"))
            model = DATA / f"{path.stem.partition('@')[0]}.gguf"
            self.golden = Golden(path.stem, model, int(held["n_context"]), *arrays)
        with open_model(model, self.golden.n_context, self.threshold) as opened:
            self.spec: ModelSpec = opened.spec

    def play(self, device: Device, chunks: list[int]) -> tuple[np.ndarray, Player]:
        """Logits of all tokens, in chunks, and the player, whose lane is closed."""
        with Player(device, self.golden, self.spec) as player:
            parts = np.split(self.golden.tokens, chunks)
            return np.concatenate([player.feed(part) for part in parts]), player


@pytest.fixture(params=APPROXIMATE, ids=lambda path: path.stem)
def approximate(request: pytest.FixtureRequest) -> Approximate:
    return Approximate(request.param)


def test_the_reference_device_says_what_transformers_says(approximate: Approximate) -> None:
    logits, _ = approximate.play(ReferenceDevice(), [5, 40])
    assert approximate.golden.error(logits) < 1e-5
    with Player(ReferenceDevice(), approximate.golden) as player:
        plain = player.feed(approximate.golden.tokens)
    assert approximate.golden.error(plain) > 1e-3


def test_the_cpu_device_equals_the_reference_with_the_same_rounding(approximate: Approximate) -> None:
    replay, chunks = Replay(), [7, 8, 40]
    logits, _ = approximate.play(RecordingDevice(CpuDevice(DeviceOptions(n_workers=2)), replay), chunks)
    whole, _ = approximate.play(CpuDevice(DeviceOptions(n_workers=3)), [])
    assert logits.tobytes() == whole.tobytes()
    expected, _ = approximate.play(ReferenceDevice("int8", "f16", replay.rounding), chunks)
    assert replay.is_used_up
    assert distance(logits, expected) < 1e-5


def test_the_cpu_device_counts_what_it_leaves_out(approximate: Approximate) -> None:
    golden, spec = approximate.golden, approximate.spec
    with Player(CpuDevice(DeviceOptions(n_workers=2)), golden, spec) as player:
        for part in np.split(golden.tokens, [1, 2, 40]):
            player.feed(part)
        assert isinstance(player.lane, CpuLane)
        n_all, n_kept = player.lane.activations
    assert n_all == len(golden.tokens) * spec.ffn_width * spec.n_layers
    is_int8 = golden.name.partition("@")[0].endswith(("q8_0", "q4_0", "k"))
    assert abs(1 - n_kept / n_all - approximate.zeros) < (BORDER_INT8 if is_int8 else BORDER)
