"""How the neurons of models fired when they ran here, kept beside their bundle files: later plans begin with it.

In: a model's fingerprint, what a lane saw. Out: a `Firing`, the usual one where nothing was seen. One small JSON file
for each model; a damaged one counts as none, one that cannot be written is left alone.
"""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

from edgeinfer.offload.places import firing_path
from edgeinfer.offload.weights import Fired, Streaming
from edgeinfer.scheduling.offload.firing import Firing
from edgeinfer.temporary import write_whole

LEAST_TOKENS = 16
"""Fewer say little."""


def firing_of(fingerprint: str) -> Firing:
    """What the last run of a model that was long enough saw."""
    try:
        loaded = json.loads(firing_path(fingerprint).read_text(encoding="utf-8"))
        return _checked(loaded)
    except (OSError, ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return Firing()


def seen(fired: Fired) -> Firing:
    """What a lane saw, for plans."""
    return Firing(fired.share, fired.found, fired.n_tokens)


def keep_seen(fingerprint: str, lane: Streaming) -> None:
    """Keep what a lane saw, if it reads neurons and saw enough."""
    fired = lane.fired
    if fired is not None:
        keep_firing(fingerprint, fired)


def keep_firing(fingerprint: str, fired: Fired) -> None:
    """Keep what a run saw, if that is enough."""
    if fired.n_tokens < LEAST_TOKENS:
        return
    found = [[round(held, 5), round(share, 5)] for held, share in fired.found]
    record = {"share": round(fired.share, 5), "found": found, "n_tokens": fired.n_tokens}
    write_whole(firing_path(fingerprint), json.dumps(record))


def _checked(loaded: Any) -> Firing:
    """A record as it was kept. Raises ValueError, TypeError or KeyError for anything else."""
    share, n_tokens = float(loaded["share"]), int(loaded["n_tokens"])
    points = [(float(held), float(found)) for held, found in loaded["found"]]
    within = all(0 <= number <= 1 for number in (share, *(number for point in points for number in point)))
    if not within or n_tokens < LEAST_TOKENS:
        raise ValueError("not what was kept")
    increasing = [point for before, point in pairwise([(-1.0, -1.0), *points]) if point[0] > before[0]]
    return Firing(share, tuple(increasing), n_tokens)
