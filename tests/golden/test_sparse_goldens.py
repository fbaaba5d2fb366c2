"""Golden models whose activations are mostly zero are so, and the cpu device finds the same zeros."""

from __future__ import annotations

import numpy as np
import pytest

from edgeinfer.backends.base import DeviceOptions
from edgeinfer.backends.cpu.device import CpuDevice
from edgeinfer.backends.cpu.lanes.lane import CpuLane
from edgeinfer.graph.op import Op
from edgeinfer.graph.step import Step
from tests.golden.goldens import Golden, Player

SPARSE = ("opt-sparse-q4_0", "llama-relu-sparse-q4_1", "llama-relu-sparse-q8_0")


@pytest.mark.parametrize("name", SPARSE)
def test_nine_of_ten_activations_are_zero(name: str) -> None:
    golden, zeros, total = Golden.read(name), 0, 0
    device = CpuDevice(DeviceOptions(n_workers=2))
    with Player(device, golden) as player:
        lane = player.lane
        assert isinstance(lane, CpuLane)

        def seen(op: Op) -> None:
            nonlocal zeros, total
            if "hidden" in op.writes:
                value = lane.value("hidden")
                zeros, total = zeros + int(np.count_nonzero(value == 0)), total + value.size

        def run(step: Step) -> object:
            return lane.watch(step, seen)

        player.lane.run = run  # type: ignore[method-assign,assignment]
        player.feed(golden.tokens)
    device.close()
    assert total == len(golden.tokens) * lane._spec.ffn_width * lane._spec.n_layers
    assert 0.85 < zeros / total < 0.97
