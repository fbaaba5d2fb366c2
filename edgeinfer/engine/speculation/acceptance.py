"""The acceptance estimator: counts of accepted candidates, by draft source and confidence bucket.

In: the number of buckets of each draft source. Out: memory that the loops read and update. Greedy and sampled text are
counted separately: a draft source is right less often when tokens are sampled.
"""

from __future__ import annotations

import importlib.resources
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeinfer.engine.requests.noise import Doubles
from edgeinfer.engine.speculation.records import (
    ACCEPTANCE,
    COUNT,
    DRAFT_SOURCES,
    FIRST_BUCKET,
    FIRST_NOISE,
    JOINT,
    LOGIT_RANGE,
    NOISE_STEP,
    NOISES,
    POINTS,
    SHARE_BITS,
    TABLE_STEPS,
)
from edgeinfer.graph.step import Floats

STARTING_COUNTS = "starting_counts.npz"
"""Written by `scripts/make_starting_counts.py`."""
MOST_SURE, MOST_SURE_JOINTLY, FEWEST_SEEN = 200.0, 40.0, 4.0
"""Limits on how often a bucket and a combination count as seen in starting counts, and the fewest worth storing."""
JOINT_BITS = 15
UNSEEN_CHANCE = 0.15
"""Probability of acceptance in a bucket that is still empty."""
UNSEEN_WEIGHT = 0.05
FIRST_WEIGHT = 0.45
ASSUMED_WEIGHT = 0.9
"""Weight of a draft source whose probabilities were assumed."""


class AcceptanceEstimator:
    """Counts, initially empty. `starts`: index of the first bucket of each draft source."""

    def __init__(self, buckets: Sequence[int]) -> None:
        sizes = [FIRST_BUCKET + n_buckets for n_buckets in buckets]
        self.starts = [sum(sizes[:place]) for place in range(len(sizes))]
        chance_of, logit_of = _tables()
        self._tables = (chance_of, logit_of)
        self.counts = np.zeros(sum(sizes), COUNT)
        self.counts["logit"] = np.log(UNSEEN_CHANCE / (1 - UNSEEN_CHANCE))
        self.joint = np.zeros(1 << JOINT_BITS, JOINT)
        self.weights = np.zeros(DRAFT_SOURCES + 1, np.float32)
        self.weights[: len(sizes)] = FIRST_WEIGHT
        self.calibration = chance_of[:: TABLE_STEPS // POINTS].copy()
        self._noises = np.float32(FIRST_NOISE) + np.float32(NOISE_STEP) * np.arange(NOISES, dtype=np.float32)
        self._gumbel_of = _gumbel_table()
        self.wins = _certain_wins(self._noises)
        self._record = np.zeros(1, ACCEPTANCE)
        self._record["calibration"], self._record["wins"] = self.calibration.ctypes.data, self.wins.ctypes.data
        self._record["noises"], self._record["gumbel_of"] = self._noises.ctypes.data, self._gumbel_of.ctypes.data
        self._record["counts"] = self.counts.ctypes.data
        self._record["weights"] = self.weights.ctypes.data
        self._record["joint"], self._record["joint_bits"] = self.joint.ctypes.data, JOINT_BITS
        self._record["chance_of"], self._record["logit_of"] = chance_of.ctypes.data, logit_of.ctypes.data

    @property
    def address(self) -> int:
        return int(self._record.ctypes.data)

    def rank_by(self, ranking: int) -> None:
        """Rank candidates of drawn text by the ranking at this address, not by the table of wins."""
        self._record["ranking"] = ranking

    def assume(self, draft_source: int, first_bucket: int, probabilities: Sequence[float], n_seen: float) -> None:
        """Fill buckets of a draft source, from its `first_bucket` on, as if each had been seen `n_seen` times."""
        buckets = self.counts[self.starts[draft_source] + FIRST_BUCKET + first_bucket :][: len(probabilities)]
        buckets["seen"], buckets["accepted"] = n_seen, n_seen * np.array(probabilities)
        buckets["logit"] = np.log(np.array(probabilities) / (1 - np.array(probabilities)))
        self.weights[draft_source] = ASSUMED_WEIGHT

    def win_chances(self, chances: Doubles, gumbels: Doubles) -> Doubles:
        """Probabilities that drawn tokens are the ones with these estimates and this noise, as in `loops.wins`."""
        least = 1 / (1 + np.exp(LOGIT_RANGE))
        chances = chances.clip(least, 1 - least)
        places = (np.log(chances / (1 - chances)) + LOGIT_RANGE) * (POINTS / (2 * LOGIT_RANGE))
        columns = ((gumbels - FIRST_NOISE) / NOISE_STEP).clip(0, NOISES - 1)
        low, left = places.astype(int).clip(0, POINTS - 1), columns.astype(int).clip(0, NOISES - 2)
        below, right = places - low, columns - left
        upper = self.wins[low, left] * (1 - right) + self.wins[low, left + 1] * right
        lower = self.wins[low + 1, left] * (1 - right) + self.wins[low + 1, left + 1] * right
        return np.asarray(upper * (1 - below) + lower * below, np.float64)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """The counts, to be saved, or to be overwritten by saved ones."""
        return {
            "counts": self.counts,
            "joint": self.joint,
            "weights": self.weights,
            "calibration": self.calibration,
            "wins": self.wins,
        }


def _tables() -> tuple[Floats, Floats]:
    """Tables: probabilities of logits from -LOGIT_RANGE to LOGIT_RANGE, and logits of probabilities from 0 to 1."""
    logits = np.linspace(-LOGIT_RANGE, LOGIT_RANGE, TABLE_STEPS + 1)
    least = 1 / (1 + np.exp(LOGIT_RANGE))  # keeps every logit within the tables
    shares = np.linspace(0, 1, TABLE_STEPS + 1).clip(least, 1 - least)
    return (1 / (1 + np.exp(-logits))).astype(np.float32), np.log(shares / (1 - shares)).astype(np.float32)


def _gumbel_table() -> Floats:
    """Gumbel noise by the upper bits of its hash, in the middle of each step: float32[1 << SHARE_BITS]."""
    shares = (np.arange(1 << SHARE_BITS) + 0.5) / (1 << SHARE_BITS)
    return (-np.log(-np.log(shares))).astype(np.float32)


def _certain_wins(noises: Floats) -> Floats:
    """The table of wins if all estimates were exact: float32[POINTS + 1, NOISES]."""
    logits = np.linspace(-LOGIT_RANGE, LOGIT_RANGE, POINTS + 1)
    return np.exp(-np.exp(-logits[:, None] - noises)).astype(np.float32)


def fill(arrays: Mapping[str, NDArray[Any]], found: Mapping[str, NDArray[Any]], prefix: str) -> None:
    """Overwrite arrays by found ones of the same name, shape and type, unless these have non-finite numbers."""
    for name, array in arrays.items():
        other = found.get(prefix + name)
        if other is not None and other.shape == array.shape and other.dtype == array.dtype and _is_finite(other):
            array[...] = other


def _is_finite(array: NDArray[Any]) -> bool:
    fields = [array[name] for name in array.dtype.names] if array.dtype.names else [array]
    return all(bool(np.isfinite(field).all()) for field in fields)


def start(acceptance: AcceptanceEstimator, draft_sources: Mapping[str, int], version: int, mode: str) -> None:
    """Load the counts that every model starts with. `draft_sources`: number of buckets of each.

    Draft sources that are not in those counts start from nothing, and then combinations of buckets do so too. Where
    there is no table of wins, it begins as if estimates were exact.
    """
    with (importlib.resources.files(__package__) / STARTING_COUNTS).open("rb") as file, np.load(file) as arrays:
        if "version" not in arrays.files or int(arrays["version"]) != version:
            return
        names, sizes = arrays["draft_sources"].tolist(), arrays["buckets"].tolist()
        counts, weights = arrays[f"{mode}.counts"], arrays[f"{mode}.weights"]
        known, at = {}, 0
        for place, (name, size) in enumerate(zip(names, sizes, strict=True)):
            known[name] = place, size, counts[at : at + FIRST_BUCKET + size]
            at += FIRST_BUCKET + size
        for place, (name, size) in enumerate(draft_sources.items()):
            if name in known and known[name][1] == size:
                first = acceptance.starts[place]
                acceptance.counts[first : first + FIRST_BUCKET + size] = known[name][2]
                acceptance.weights[place] = weights[known[name][0]]
        acceptance.weights[len(draft_sources)] = weights[len(names)]
        acceptance.calibration[:] = arrays[f"{mode}.calibration"]
        if f"{mode}.wins" in arrays.files:
            acceptance.wins[:] = arrays[f"{mode}.wins"]
        if list(draft_sources) == names:
            acceptance.joint[arrays[f"{mode}.places"]] = arrays[f"{mode}.joint"]


def compact(acceptance: AcceptanceEstimator, mode: str) -> dict[str, NDArray[Any]]:
    """Counts in the form that `start` reads: only combinations seen a few times, and none with too high a count."""
    counts, joint = acceptance.counts.copy(), acceptance.joint.copy()
    for array, most in ((counts, MOST_SURE), (joint, MOST_SURE_JOINTLY)):
        share = np.minimum(1, most / np.maximum(array["seen"], 1))
        array["seen"] *= share
        array["accepted"] *= share
    places = np.flatnonzero(joint["seen"] >= FEWEST_SEEN).astype(np.int32)
    return {
        f"{mode}.counts": counts,
        f"{mode}.weights": acceptance.weights,
        f"{mode}.calibration": acceptance.calibration,
        f"{mode}.wins": acceptance.wins,
        f"{mode}.places": places,
        f"{mode}.joint": joint[places],
    }
