"""The clock of reads under way: overlapping ones count once, and so far while one of them goes on."""

from __future__ import annotations

import time

import pytest

from edgeinfer.backends.cpu.streaming.busy import BusyClock


def test_overlapping_reads_count_once(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(time, "perf_counter", lambda: now)
    clock, seen = BusyClock(), []
    for now, act in ((1.0, clock.begin), (2.0, clock.begin), (4.0, clock.end), (7.0, clock.end), (9.0, clock.begin)):
        act()
        seen.append(clock.seconds)
    assert seen == [0.0, 1.0, 3.0, 6.0, 6.0]
    now = 9.5
    assert clock.seconds == 6.5
    assert clock.n_flying == 1
