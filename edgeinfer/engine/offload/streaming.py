"""A model that streams its weights, while it runs: memory given back under pressure.

In: a lane with weights that may or may not stay, the available memory. Out: between two passes, a smaller cache, other
pinned bundles, or less room for streamed ones, retaken later. Knows nothing of what a pass computes.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from edgeinfer.offload.weights import Streaming, WeightReads
from edgeinfer.scheduling.machine.topology import available_bytes, read_topology
from edgeinfer.scheduling.offload.weight_placement import WeightPiece, pinned_loads

LOOK_S = 1.0
"""Interval between readings of the available memory, each of which takes some tenths of a millisecond."""
LOW_SHARE = 1 / 40
MOST_LOW_BYTES, LEAST_LOW_BYTES = 96 << 20, 16 << 20
"""Memory is low below this share of the total (of the container's limit, if it has one), within these bounds."""
HIGH, SPARE = 2, 4
"""Gives back enough for HIGH times the low mark to be available; retakes only what exceeds SPARE times the low mark,"""
CALM_S = 30.0
"""after this long without pressure."""


class Pressure:
    """Watches one lane. `available` returns available bytes out of `total_bytes`; `clock` returns seconds."""

    def __init__(
        self,
        lane: Streaming,
        available: Callable[[], int] = available_bytes,
        clock: Callable[[], float] = time.monotonic,
        total_bytes: int | None = None,
    ) -> None:
        """`total_bytes`: None for this machine's or container's."""
        total = read_topology().total_bytes if total_bytes is None else total_bytes
        self.low_bytes = max(LEAST_LOW_BYTES, min(MOST_LOW_BYTES, int(total * LOW_SHARE)))
        self._lane, self._available, self._clock = lane, available, clock
        self._wanted, self._wanted_cache_bytes = dict(lane.pinned), lane.cache_bytes
        self._asked = frozenset(self._wanted)
        self._looked_s = self._pressed_s = clock()

    @property
    def reading(self) -> WeightReads:
        """Weights the lane has read."""
        return self._lane.reading

    def look(self) -> None:
        """Before a pass: check whether memory must be given back or may be retaken."""
        now = self._clock()
        if now - self._looked_s < LOOK_S:
            return
        self._looked_s = now
        available, held = self._available(), self._held()
        if available < self.low_bytes:
            self._pressed_s = now
            self._give_back(HIGH * self.low_bytes - available)
        elif (
            held < sum(self._wanted.values()) + self._wanted_cache_bytes
            and now - self._pressed_s > CALM_S
            and available > SPARE * self.low_bytes
        ):
            self._pressed_s = now
            self._hold(held + available - SPARE * self.low_bytes)

    def _give_back(self, n_bytes: int) -> None:
        """Hold this much less, which can be retaken; any shortfall comes from records, for good."""
        held = self._held()
        if held:
            self._hold(held - n_bytes)
        lacking = n_bytes - (held - self._held())
        if lacking > 0:
            self._lane.shrink(lacking)

    def _held(self) -> int:
        """Bytes that are pinned or cached."""
        return sum(self._lane.pinned.values()) + self._lane.cache_bytes

    def _hold(self, n_bytes: int) -> None:
        """Keep this much of the original amount: pieces that every pass needs, evenly spread, and then a cache."""
        numbers = list(self._wanted)
        cache_bytes = min(self._wanted_cache_bytes, max(0, n_bytes - sum(self._wanted.values())))
        if cache_bytes != self._lane.cache_bytes:
            self._lane.resize_cache(cache_bytes)
        left = max(0, n_bytes - self._lane.cache_bytes)
        chosen = pinned_loads([WeightPiece(self._wanted[number]) for number in numbers], left)
        asked = frozenset(numbers[place] for place in chosen)
        if asked != self._asked:  # only changes: what must stay stays anyway, and pinning restarts a pass
            self._lane.pin(asked)
            self._asked = asked
