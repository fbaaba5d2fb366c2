"""Waking the one thread that waits for others, which a signal handler may interrupt at any moment.

In: rings, from any thread. Out: a wait that ends. Conditions are no good to a thread that exceptions of signal handlers
come to: one that comes while their lock is taken again leaves it with nobody, or with two. Knows nothing of why.
"""

from __future__ import annotations

import threading


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
