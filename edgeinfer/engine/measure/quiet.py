"""Whether other processes used the machine during a measurement: CPU time that is not ours.

In: the operating system's counters. Out: the share of all processors' time that others took meanwhile. Time that a
virtual machine's host takes away counts as taken by others.
"""

from __future__ import annotations

import psutil

BUSY_SHARE = 0.06
"""Share of one core: if others take more, a round counts as disturbed."""


class QuietMeter:
    """Measures the CPU time others take, round by round."""

    def __init__(self) -> None:
        self._others_s = self._total_s = 0.0
        self._before = _counters()

    @property
    def idle_share(self) -> float:
        """Share of all processors' time that others left, over all rounds."""
        return 1.0 - min(1.0, self._others_s / self._total_s) if self._total_s else 1.0

    def begin(self) -> None:
        """Begin a round."""
        self._before = _counters()

    def end(self) -> bool:
        """End a round; returns whether it was undisturbed."""
        after = _counters()
        others_s = max(0.0, after[0] - self._before[0] - (after[1] - self._before[1]))
        total_s = max(1e-9, after[2] - self._before[2])
        self._others_s += others_s
        self._total_s += total_s
        return others_s <= BUSY_SHARE * total_s / (psutil.cpu_count() or 1)


def _counters() -> tuple[float, float, float]:
    """Busy seconds of all processors, busy seconds of this process, and total seconds of all processors."""
    times, own = psutil.cpu_times(), psutil.Process().cpu_times()
    doubled = getattr(times, "guest", 0.0) + getattr(times, "guest_nice", 0.0)  # included in user and nice
    total = float(sum(times)) - doubled
    idle = times.idle + getattr(times, "iowait", 0.0)
    return total - idle, own.user + own.system + own.children_user + own.children_system, total
