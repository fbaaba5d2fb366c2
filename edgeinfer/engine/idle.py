"""How much of the machine nothing uses: measured between runs, while every engine of the bench waits.

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
    before = psutil.cpu_times()
    time.sleep(WINDOW_S)
    after = psutil.cpu_times()
    spent = {name: getattr(after, name) - getattr(before, name) for name in after._fields}
    doubled = spent.get("guest", 0.0) + spent.get("guest_nice", 0.0)  # within user and nice already
    total = sum(spent.values()) - doubled
    idle = spent["idle"] + spent.get("iowait", 0.0)
    return min(1.0, max(0.0, idle / total)) if total > 0 else 1.0


def is_busy(idle: float, threads: int) -> bool:
    """Whether others leave a run of `threads` threads less than NEEDED_SHARE of the cores it needs.

    Cores that the run does not use may be busy. A core counts with all its hardware threads.
    """
    logical = psutil.cpu_count() or 1
    per_core = logical / (psutil.cpu_count(logical=False) or logical)
    return idle * logical < NEEDED_SHARE * min(logical, threads * per_core)
