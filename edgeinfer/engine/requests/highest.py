"""Which tokens of a vocabulary have the highest logits.

In: float32[V] logits, and their peaks if the device reports them. Out: tokens. Knows no settings and no chance.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgeinfer.backends.base import PEAK_BLOCK, PEAK_LANES
from edgeinfer.engine.requests.noise import Int64s
from edgeinfer.errors import EdgeInferError, NotFinite

ROW = 1024
"""Width of the rows in which logits are searched for the highest."""
ROWS_SKIPPED = 4
"""One row in this many is used to estimate where the highest logits begin."""


def no_number(token: int, what: str) -> NotFinite:
    """The error of a model that has NaN or infinity for a token."""
    return NotFinite(
        f"the model gave no number for token {token} ({what}); the file is damaged, the model overflows or the device "
        "fails: check its checksum, or try another quantisation of it, or --device cpu"
    )


def most_likely(values: NDArray[np.float32], tokens: Int64s | None = None) -> int:
    """Index of the highest logit; of equals, the lowest index. `tokens`: the token of each value."""
    best = int(values.argmax())
    if np.isnan(values[best]):
        raise no_number(best if tokens is None else int(tokens[best]), "NaN")
    if values[best] == -np.inf:
        raise EdgeInferError("every token is forbidden: logit_bias or the model left none to choose from")
    return best


def most_likely_by_peaks(logits: NDArray[np.float32], peaks: NDArray[np.float32]) -> int | None:
    """Index of the highest logit if it is unique and all logits are finite; else None."""
    place = int(peaks.argmax())  # the first NaN if there is one
    if np.count_nonzero(peaks == peaks[place]) != 1:
        return None
    block, lane = divmod(place, PEAK_LANES)
    lane_logits = logits[block * PEAK_BLOCK + lane : (block + 1) * PEAK_BLOCK : PEAK_LANES]
    return block * PEAK_BLOCK + lane + PEAK_LANES * int(lane_logits.argmax())


def shortlist(values: NDArray[np.float32], n: int) -> Int64s:
    """Increasing indices that include the n highest values and all NaN, a few more, and no impossible tokens.

    If fewer tokens are possible, as under a grammar, these are all of them.
    """
    part = values[: len(values) // ROW * ROW].reshape(-1, ROW)[::ROWS_SKIPPED]
    if n > ROW // 2 or len(part) < 2:
        return np.arange(len(values))
    highest = part.max(axis=0)  # maxima of strided groups are separate values, so n values reach the n-th of them
    edge = np.partition(highest, ROW - n)[ROW - n]
    lower = values == -np.inf if edge == -np.inf else values < edge
    found: Int64s = np.logical_not(lower, out=lower).nonzero()[0]
    return found if len(found) else np.arange(len(values))


def highest_of(values: NDArray[np.float32], n: int) -> Int64s:
    """Increasing indices of the n highest values; of equals at the edge, the lowest indices."""
    edge = np.partition(values, len(values) - n)[len(values) - n]
    candidates: Int64s = (values >= edge).nonzero()[0]
    if len(candidates) > n:
        equal = candidates[values[candidates] == edge]
        candidates = np.setdiff1d(candidates, equal[len(equal) - (len(candidates) - n) :], assume_unique=True)
    return candidates
