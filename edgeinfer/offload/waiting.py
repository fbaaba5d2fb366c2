"""Waiting for threads that read: a wake-up for one waiting thread, and a clock for the time under way.

In: nothing. Out: a `Bell` and a `BusyClock`, which is used under the lock of its owner. Conditions are unsafe in a
thread where signal handlers raise exceptions: an exception while the lock is being taken again leaves it taken by no
thread, or by two. Knows nothing of what is read.
"""

from __future__ import annotations

import threading
import time


class Bell:
    """A wake-up without a count: check the state, wait, then check again."""

    def __init__(self) -> None:
        self._silent = threading.Lock()
        self._silent.acquire()

    def ring(self) -> None:
        """End the current wait, or the next one. Only one thread may ring at a time."""
        if self._silent.locked():
            self._silent.release()

    def wait(self) -> None:
        """Wait for a ring; one since the last wait counts. Exceptions of signal handlers pass through."""
        self._silent.acquire()


class BusyClock:
    """A clock that runs while any read is under way."""

    def __init__(self) -> None:
        self.n_flying = 0
        self._seconds, self._since = 0.0, 0.0

    def begin(self) -> None:
        """Count the beginning of a read."""
        if not self.n_flying:
            self._since = time.perf_counter()
        self.n_flying += 1

    def end(self) -> None:
        """Count the end of a read."""
        self.n_flying -= 1
        if not self.n_flying:
            self._seconds += time.perf_counter() - self._since

    @property
    def seconds(self) -> float:
        """Seconds until now."""
        return self._seconds + (time.perf_counter() - self._since if self.n_flying else 0.0)
