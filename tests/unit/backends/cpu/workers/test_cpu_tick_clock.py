"""Seconds per tick of the time stamp counter."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import cast

import pytest

from edgeinfer.backends.cpu.workers import worker_pool
from edgeinfer.jit.library import KernelLibrary


def test_ticks_are_counted_right_when_the_thread_is_set_aside(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread is set aside for 20 ms in three of four readings of the ticks, which come at 2 GHz."""
    now, pauses = [0.0], itertools.cycle((0.02, 0.0, 0.02, 0.02))

    def pass_time(seconds: float) -> None:
        now[0] += seconds

    class Time:
        sleep = staticmethod(pass_time)

        @staticmethod
        def perf_counter() -> float:
            pass_time(1e-7)
            return now[0]

    class Library:
        @staticmethod
        def function(kernel: object) -> Callable[[], int]:
            return read

    def read() -> int:
        pass_time(next(pauses))
        return int(now[0] * 2e9)

    monkeypatch.setattr(worker_pool, "time", Time)
    clock = worker_pool._TickClock(cast("KernelLibrary", Library))
    pass_time(0.05)
    assert clock.seconds_per_tick() == pytest.approx(0.5e-9, rel=1e-4)
