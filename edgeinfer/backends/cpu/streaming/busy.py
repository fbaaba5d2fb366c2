"""How long at least one of several reads has been under way.

In: beginnings and ends, from any thread that holds the lock of whoever owns the clock. Out: seconds.
"""

from __future__ import annotations

import time


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
