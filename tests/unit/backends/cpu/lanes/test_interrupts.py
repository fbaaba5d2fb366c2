"""Exceptions of signal handlers at any moment of a pass: the next one neither hangs nor has other bits."""

from __future__ import annotations

import gc
import random
import signal
import sys
from pathlib import Path

import numpy as np
import pytest

from edgeinfer.backends.base import DeviceOptions
from edgeinfer.backends.cpu.bundles import contents
from edgeinfer.backends.cpu.device import CpuDevice
from edgeinfer.backends.cpu.lanes.lane import CpuLane
from edgeinfer.backends.cpu.workers.worker_pool import WorkerPool
from tests.golden.goldens import Golden, Player
from tests.golden.streamed_devices import Streamer
from tests.waiting import until

CHAIN = list(range(-1, 19))
TIMES = 400


class Interrupted(BaseException):
    """What the handler raises."""


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no interval timers")
@pytest.mark.parametrize("name", ["llama-q4_0", "qwen2moe-q4_0"])
def test_passes_after_interruptions_have_the_same_bits(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contents, "SMALLEST_BYTES", 6000)
    golden, draw = Golden.read(name), random.Random(1)
    tokens = golden.tokens[:20]
    with Player(CpuDevice(DeviceOptions(n_workers=2)), golden) as player:
        expected, one = player.look(tokens, CHAIN), player.look(tokens[:1], [-1])
    is_armed = False

    def interrupt(*_: object) -> None:
        nonlocal is_armed
        if is_armed:
            is_armed = False
            raise Interrupted

    gc.disable()  # an exception within a callback of the collector is printed and lost
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with Player(Streamer(tmp_path / "model.bundles", 0.1), golden) as player:
            for number in range(TIMES):
                is_armed = True
                try:
                    signal.setitimer(signal.ITIMER_REAL, draw.uniform(0.00005, 0.004))
                    while is_armed:
                        assert (player.look(tokens[:1], [-1]) == one).all()
                except Interrupted:
                    pass
                if number % 20 == 0:
                    assert np.array_equal(player.look(tokens, CHAIN), expected)
            assert np.array_equal(player.look(tokens, CHAIN), expected)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        gc.enable()


def test_an_interrupted_launch_does_not_spoil_the_next_step(monkeypatch: pytest.MonkeyPatch) -> None:
    golden = Golden.read("llama-q4_0")
    tokens = golden.tokens[:20]
    with Player(CpuDevice(DeviceOptions(n_workers=2)), golden) as player:
        assert isinstance(player.lane, CpuLane)
        worker_pool = player.lane._worker_pool
        worker_pool.patience_s = 0.0
        expected = player.look(tokens, CHAIN)
        n_interrupted = 0

        def interrupted(*_: object) -> None:
            raise Interrupted

        for _ in range(10):
            until(lambda: bool(worker_pool._asleep[1]))
            with monkeypatch.context() as patch:
                patch.setattr(WorkerPool, "_rouse", interrupted)
                try:
                    player.look(tokens[::-1].copy(), CHAIN)
                except Interrupted:
                    n_interrupted += 1
            assert np.array_equal(player.look(tokens, CHAIN), expected)
        assert n_interrupted
