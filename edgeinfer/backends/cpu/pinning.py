"""Where threads run: pinning to cores, and giving a core up. On systems that cannot pin, nothing happens."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Collection
from typing import Any

_C = ctypes.CDLL(None) if sys.platform == "linux" else None


def pin(cores: Collection[int]) -> Collection[int]:
    """Let the calling thread run on these cores only; returns those it was allowed before, () where none can be set."""
    if sys.platform != "linux" or not cores:
        return ()
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    return before


def unpin(before: Collection[int]) -> None:
    """Undo a `pin`, given what it returned."""
    if sys.platform == "linux" and before:
        os.sched_setaffinity(0, before)


def running_on() -> int:
    """The core that the calling thread is on just now; -1 where the system does not say."""
    return int(_C.sched_getcpu()) if _C is not None else -1


def yield_function() -> Any:
    """The C function that gives up the core."""
    if sys.platform == "win32":
        return ctypes.windll.kernel32.SwitchToThread
    return ctypes.CDLL(None).sched_yield
