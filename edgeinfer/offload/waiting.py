"""Waiting for threads that read: waking the one that waits, and how long at least one of several reads was under way.

In: rings, beginnings and ends, from any thread; those of a `BusyClock` under the lock of its owner. Out: a wait that
ends, seconds. Conditions do not do for a thread that exceptions of signal handlers come to: one that comes while their
lock is taken again leaves it taken by no thread, or by two. Knows nothing of why.
"""

from __future__ import annotations

import threading
import time


class Bell:
    """Rings are not counted: look first, then wait, then look again."""

    def __init__(self) -> None:
        self._silent = threading.Lock()
        self._silent.acquire()

    def ring(self) -> None:
        """End the wait there is, or the next one; one thread at a time."""
        if self._silent.locked():
            self._silent.release()

    def wait(self) -> None:
        """Until it rings, or has rung since the last wait. What a signal handler raises passes through."""
        self._silent.acquire()


class BusyClock:
    """Runs while anything is under way."""

    def __init__(self) -> None:
        self.n_flying = 0
        self._seconds, self._since = 0.0, 0.0

    def begin(self) -> None:
        """One more is under way."""
        if not self.n_flying:
            self._since = time.perf_counter()
        self.n_flying += 1

    def end(self) -> None:
        """One of them is done."""
        self.n_flying -= 1
        if not self.n_flying:
            self._seconds += time.perf_counter() - self._since

    @property
    def seconds(self) -> float:
        """Until now."""
        return self._seconds + (time.perf_counter() - self._since if self.n_flying else 0.0)
