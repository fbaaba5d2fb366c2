"""A model that streams its weights, while it runs: memory given back under pressure, and how its neurons fire.

In: a lane with weights that may or may not stay, the available memory, what the lane counted. Out: between two passes,
a smaller cache, other pinned bundles, or less room for streamed ones, retaken later; a `Firing` for later plans, in a
small JSON file per model beside its bundle files, or typical values if nothing was counted. A damaged file and a failed
write are ignored. Knows nothing of what a pass computes.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

from edgeinfer.offload.bundle_file import firing_path
from edgeinfer.offload.weights import Fired, Streaming, WeightReads
from edgeinfer.scheduling.machine.topology import available_bytes, read_topology
from edgeinfer.scheduling.offload.reads import Firing
from edgeinfer.scheduling.offload.weight_placement import WeightPiece, pinned_loads
from edgeinfer.temporary import write_whole

LOOK_S = 1.0
"""Interval between readings of the available memory, each of which takes some tenths of a millisecond."""
LOW_SHARE = 1 / 40
MOST_LOW_BYTES, LEAST_LOW_BYTES = 96 << 20, 16 << 20
"""Memory is low below this share of the total (of the container's limit, if it has one), within these bounds."""
HIGH, SPARE = 2, 4
"""Gives back enough for HIGH times the low mark to be available; retakes only what exceeds SPARE times the low mark,"""
CALM_S = 30.0
"""after this long without pressure."""
LEAST_TOKENS = 16
"""Fewer tokens say little."""


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
        """Hold this much less, which can be retaken; any shortfall comes from single neurons, for good."""
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


def firing_of(fingerprint: str) -> Firing:
    """Statistics of the last sufficiently long run of a model."""
    try:
        loaded = json.loads(firing_path(fingerprint).read_text(encoding="utf-8"))
        return _checked(loaded)
    except (OSError, ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return Firing()


def seen(fired: Fired) -> Firing:
    """A lane's counts, for plans."""
    return Firing(fired.share, fired.found, fired.n_tokens)


def keep_seen(fingerprint: str, lane: Streaming) -> None:
    """Store a lane's counts if it reads neurons and has counted enough."""
    fired = lane.fired
    if fired is not None:
        keep_firing(fingerprint, fired)


def keep_firing(fingerprint: str, fired: Fired) -> None:
    """Store a run's counts if they are enough."""
    if fired.n_tokens < LEAST_TOKENS:
        return
    found = [[round(held, 5), round(share, 5)] for held, share in fired.found]
    record = {"share": round(fired.share, 5), "found": found, "n_tokens": fired.n_tokens}
    write_whole(firing_path(fingerprint), json.dumps(record))


def _checked(loaded: Any) -> Firing:
    """A stored record. Raises ValueError, TypeError or KeyError for an invalid one."""
    share, n_tokens = float(loaded["share"]), int(loaded["n_tokens"])
    points = [(float(held), float(found)) for held, found in loaded["found"]]
    within = all(0 <= number <= 1 for number in (share, *(number for point in points for number in point)))
    if not within or n_tokens < LEAST_TOKENS:
        raise ValueError("not what was kept")
    increasing = [point for before, point in pairwise([(-1.0, -1.0), *points]) if point[0] > before[0]]
    return Firing(share, tuple(increasing), n_tokens)
