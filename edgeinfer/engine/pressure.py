"""Memory pressure: a model that streams its weights gives memory back before the system runs out, and takes it again.

In: a lane with weights that may stay or not, what is available. Out: other bundles pinned between two passes. Knows
nothing of what a pass computes.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from edgeinfer.backends.stored import Reading, Streaming
from edgeinfer.scheduling.residency import Load, pinned_loads
from edgeinfer.scheduling.topology import available_bytes

LOOK_S = 1.0
"""Between two looks at what is available: reading that takes some tenths of a millisecond."""
LOW_BYTES, HIGH_BYTES = 96 << 20, 192 << 20
"""Below the first of available memory so much is given back that the second is there again;"""
SPARE_BYTES = 384 << 20
"""only what is beyond this is taken again, after CALM_S without pressure."""
CALM_S = 30.0


class Pressure:
    """Watches over one lane. `available` tells bytes, `clock` seconds."""

    def __init__(
        self,
        lane: Streaming,
        available: Callable[[], int] = available_bytes,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._lane, self._available, self._clock = lane, available, clock
        self._wanted = dict(lane.pinned)
        self._looked_s = self._pressed_s = clock()

    @property
    def reading(self) -> Reading:
        """What the lane has read."""
        return self._lane.reading

    def look(self) -> None:
        """Before a pass: see whether memory must be given back, or may be taken again."""
        now = self._clock()
        if now - self._looked_s < LOOK_S:
            return
        self._looked_s = now
        available, pinned = self._available(), self._lane.pinned
        held = sum(pinned.values())
        if available < LOW_BYTES and held:
            self._pressed_s = now
            self._hold(held - (HIGH_BYTES - available))
        elif len(pinned) < len(self._wanted) and now - self._pressed_s > CALM_S and available > SPARE_BYTES:
            self._pressed_s = now
            self._hold(held + available - SPARE_BYTES)

    def _hold(self, n_bytes: int) -> None:
        """Keep so many bytes of what was wanted at first, as evenly spread as then."""
        numbers = list(self._wanted)
        chosen = pinned_loads([Load(self._wanted[number]) for number in numbers], max(0, n_bytes))
        self._lane.pin(frozenset(numbers[place] for place in chosen))
