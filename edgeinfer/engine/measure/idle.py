"""How much of the machine nothing uses: between runs, while every engine of the bench waits, or beside one process.

In: the operating system's counters of CPU time. Out: the idle share of all logical CPUs, and whether that leaves a run
the cores it needs. Time that a virtual machine's host takes away counts as used.
"""

from __future__ import annotations

import time

import psutil

SETTLE_S = 0.1
"""Worker threads of engines spin for some milliseconds after their work."""
WINDOW_S = 0.4
NEEDED_SHARE = 0.9
"""Of each core that a run uses so much must be idle before and after it."""


def idle_share() -> float:
    """Share of all logical CPUs' time that was idle, over WINDOW_S from shortly after now."""
    time.sleep(SETTLE_S)
    before = _seconds()
    time.sleep(WINDOW_S)
    after = _seconds()
    total, idle = (late - early for late, early in zip(after, before, strict=True))
    return min(1.0, max(0.0, idle / total)) if total > 0 else 1.0


class IdleBeside:
    """From now on: the idle share of all logical CPUs, had one process not run."""

    def __init__(self, pid: int) -> None:
        self._pid, self._before = pid, (*_seconds(), _spent_s(pid))

    def share(self) -> float:
        """Share of all logical CPUs' time since then that was idle or that the process took."""
        after = *_seconds(), _spent_s(self._pid)
        total, idle, own = (late - early for late, early in zip(after, self._before, strict=True))
        return min(1.0, max(0.0, (idle + own) / total)) if total > 0 else 1.0


def _seconds() -> tuple[float, float]:
    """CPU time of all logical CPUs so far, and what of it was idle."""
    times = psutil.cpu_times()
    spent = {name: getattr(times, name) for name in times._fields}
    doubled = spent.get("guest", 0.0) + spent.get("guest_nice", 0.0)  # within user and nice already
    return sum(spent.values()) - doubled, spent["idle"] + spent.get("iowait", 0.0)


def _spent_s(pid: int) -> float:
    """CPU time of a process so far, 0 for one that is over."""
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
