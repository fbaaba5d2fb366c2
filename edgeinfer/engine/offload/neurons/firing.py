"""How the neurons of a model fired in earlier runs, kept for later plans.

In: what a lane counted. Out: a `Firing`, from a small JSON file per model beside its bundle files, or typical values if
nothing was counted. A damaged file and a failed write are ignored.
"""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

from edgeinfer.offload.bundle_file import firing_path
from edgeinfer.offload.weights import RecordUse
from edgeinfer.scheduling.offload.neurons.firing import Firing
from edgeinfer.temporary import write_whole

LEAST_TOKENS = 16
"""Fewer tokens say little."""


def firing_of(fingerprint: str) -> Firing:
    """Statistics of the last sufficiently long run of a model."""
    try:
        loaded = json.loads(firing_path(fingerprint).read_text(encoding="utf-8"))
        return _checked(loaded)
    except (OSError, ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return Firing()


def seen(fired: RecordUse) -> Firing:
    """A lane's counts, for plans."""
    return Firing(fired.share, fired.found, fired.n_tokens)


def keep_firing(fingerprint: str, fired: RecordUse) -> None:
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
