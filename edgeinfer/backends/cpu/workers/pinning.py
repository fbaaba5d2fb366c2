"""Pins threads to cores, permanently or for a while, and yields a core. Does nothing on systems without pinning."""

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
    """Pins a thread for a while. If a signal handler raises at any point, `release` restores the state."""

    def __init__(self) -> None:
        self._thread = 0
        self._before: Collection[int] = ()

    def hold(self, cores: Collection[int]) -> None:
        """Let the calling thread run on these cores only, until `release`."""
        if sys.platform != "linux" or not cores:
            return
        thread = threading.get_ident()
        if not self._before or self._thread != thread:  # otherwise the last release was interrupted
            self._thread, self._before = thread, os.sched_getaffinity(0)
        os.sched_setaffinity(0, cores)

    def release(self) -> None:
        """Let the calling thread run where it could before `hold`, if it was held."""
        if sys.platform == "linux" and self._before and self._thread == threading.get_ident():
            os.sched_setaffinity(0, self._before)
            self._before = ()


def running_on() -> int:
    """The core that the calling thread runs on now; -1 if the system does not report it."""
    return int(_C.sched_getcpu()) if _C is not None else -1


def yield_function() -> Any:
    """The C function that yields the core."""
    if sys.platform == "win32":
        return ctypes.windll.kernel32.SwitchToThread
    return ctypes.CDLL(None).sched_yield
