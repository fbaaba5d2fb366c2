"""The clock of busy time."""

from __future__ import annotations

import time

import pytest

from edgeinfer.offload.waiting import BusyClock


def test_overlapping_reads_count_once(monkeypatch: pytest.MonkeyPatch) -> None:
    moments = iter((1.0, 4.0, 7.0, 9.0, 9.5))
    monkeypatch.setattr(time, "perf_counter", lambda: next(moments))
    clock = BusyClock()
    clock.begin()  # at 1
    clock.begin()
    assert clock.seconds == 3.0  # at 4
    clock.end()
    clock.end()  # at 7
    assert clock.seconds == 6.0
    clock.begin()  # at 9
    assert clock.seconds == 6.5  # at 9.5
    assert clock.n_flying == 1
