"""Where threads run: on cores for good or for a while, and giving a core up. Nothing happens where none can be set."""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from collections.abc import Collection
from typing import Any

_C = ctypes.CDLL(None) if sys.platform == "linux" else None


def pin(cores: Collection[int]) -> None:
    """Let the calling thread run on these cores only."""
    if sys.platform == "linux" and cores:
        os.sched_setaffinity(0, cores)


class Pin:
    """Cores that a thread works on for a while. What a signal handler raises anywhere is made up for by `release`."""

    def __init__(self) -> None:
        self._thread = 0
        self._before: Collection[int] = ()

    def hold(self, cores: Collection[int]) -> None:
        """Let the calling thread run on these cores only, until `release`."""
        if sys.platform != "linux" or not cores:
            return
        thread = threading.get_ident()
        if not self._before or self._thread != thread:  # else the last release was interrupted
            self._thread, self._before = thread, os.sched_getaffinity(0)
        os.sched_setaffinity(0, cores)

    def release(self) -> None:
        """Let the calling thread run where it could before it was held, if it was."""
        if sys.platform == "linux" and self._before and self._thread == threading.get_ident():
            os.sched_setaffinity(0, self._before)
            self._before = ()


def running_on() -> int:
    """The core that the calling thread is on just now; -1 where the system does not say."""
    return int(_C.sched_getcpu()) if _C is not None else -1


def yield_function() -> Any:
    """The C function that gives up the core."""
    if sys.platform == "win32":
        return ctypes.windll.kernel32.SwitchToThread
    return ctypes.CDLL(None).sched_yield
