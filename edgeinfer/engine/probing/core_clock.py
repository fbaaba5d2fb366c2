"""The clock of the core that a thread runs on, measured now; what a time stamp counter says is another clock.

In: nothing. Out: cycles per second.
"""

from __future__ import annotations

import time

from edgeinfer.engine.probing.memory import reading_library
from edgeinfer.jit.clock import CHAIN, LINK_CYCLES

LINKS, RUNS = 500_000, 5


class CoreClock:
    """Measures it; owns the compiled code."""

    def __init__(self) -> None:
        self._library = reading_library()
        self._chain = self._library.function(CHAIN)

    def hz(self) -> float:
        """Cycles per second of this core: the fastest of a few runs, as others may interrupt."""
        seconds = []
        for _ in range(RUNS):
            started = time.perf_counter()
            self._chain(LINKS)
            seconds.append(time.perf_counter() - started)
        return LINKS * LINK_CYCLES / min(seconds)
