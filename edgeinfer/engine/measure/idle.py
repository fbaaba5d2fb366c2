"""How idle the machine is, and whether other processes used it: between runs, beside a process, during a measurement.

In: the operating system's counters of CPU time. Out: the idle share of all logical CPUs, and whether that leaves a run
the cores it needs; the share that other processes took meanwhile. Time that a virtual machine's host takes away counts
as used by others.
"""

from __future__ import annotations

import time

import psutil

SETTLE_S = 0.1
"""Settling time: worker threads of engines spin for some milliseconds after their work."""
WINDOW_S = 0.4
NEEDED_SHARE = 0.9
"""Share of each core that a run uses which must be idle before and after it."""
BUSY_SHARE = 0.06
"""Share of one core: if others take more, a round counts as disturbed."""


def idle_share() -> float:
    """Share of all logical CPUs' time that was idle, over WINDOW_S, starting shortly after the call."""
    time.sleep(SETTLE_S)
    before = _seconds()
    time.sleep(WINDOW_S)
    after = _seconds()
    total, idle = (late - early for late, early in zip(after, before, strict=True))
    return min(1.0, max(0.0, idle / total)) if total > 0 else 1.0


class IdleBeside:
    """Measures from now on: the idle share of all logical CPUs as if one process had not run."""

    def __init__(self, pid: int) -> None:
        self._pid, self._before = pid, (*_seconds(), _spent_s(pid))

    def share(self) -> float:
        """Share of all logical CPUs' time since the start that was idle or used by the process."""
        after = *_seconds(), _spent_s(self._pid)
        total, idle, own = (late - early for late, early in zip(after, self._before, strict=True))
        return min(1.0, max(0.0, (idle + own) / total)) if total > 0 else 1.0


def _seconds() -> tuple[float, float]:
    """CPU time of all logical CPUs so far, and how much of it was idle."""
    times = psutil.cpu_times()
    spent = {name: getattr(times, name) for name in times._fields}
    doubled = spent.get("guest", 0.0) + spent.get("guest_nice", 0.0)  # included in user and nice
    return sum(spent.values()) - doubled, spent["idle"] + spent.get("iowait", 0.0)


def _spent_s(pid: int) -> float:
    """CPU time of a process so far; 0 for one that has ended."""
    try:
        times = psutil.Process(pid).cpu_times()
    except psutil.Error:
        return 0.0
    return float(times.user + times.system)


def is_busy(idle: float, threads: int) -> bool:
    """Whether others leave a run of `threads` threads less than NEEDED_SHARE of the cores it needs.

    Cores that the run does not use may be busy. A core counts with all its hardware threads.
    """
    logical = psutil.cpu_count() or 1
    per_core = logical / (psutil.cpu_count(logical=False) or logical)
    return idle * logical < NEEDED_SHARE * min(logical, threads * per_core)


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
