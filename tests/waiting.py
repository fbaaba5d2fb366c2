"""Waiting for what comes by itself, however slow the machine is: for a condition, never for a time.

In: conditions. Out: nothing, or a failure after PATIENCE_S, which is far more than anything here takes.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import psutil

PATIENCE_S = 120.0


def until(happened: Callable[[], object], meanwhile: Callable[[], object] | None = None) -> None:
    """Wait until `happened()` is true; `meanwhile` is called between two looks."""
    ends = time.monotonic() + PATIENCE_S
    while not happened():
        assert time.monotonic() < ends, f"not within {PATIENCE_S:g} s"
        if meanwhile is not None:
            meanwhile()
        time.sleep(0.005)


def is_over(pid: int) -> bool:
    """Whether a process has ended."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def rests(used_s: Callable[[], float]) -> bool:
    """Whether a program comes to compute nothing. `used_s`: seconds of processor time that it has used so far.

    At first its threads may spin a while or have something left to do, and a busy machine draws that out; one that
    spins on never has half a second with so little.
    """
    for _ in range(20):
        before_s = used_s()
        time.sleep(0.5)
        if used_s() - before_s < 0.05:
            return True
    return False
