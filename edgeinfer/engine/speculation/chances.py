"""What came of the voices' claims: the counts behind every estimate of a candidate's chance.

In: how many claims each voice can make. Out: memory that the loops read and update. Greedy and sampled text have counts
of their own: a voice is right less often where tokens are drawn.
"""

from __future__ import annotations

import importlib.resources
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeinfer.engine.speculation.records import (
    CHANCES,
    COUNT,
    FIRST_CLAIM,
    JOINT,
    LOGIT_RANGE,
    POINTS,
    TABLE_STEPS,
    VOICES,
)
from edgeinfer.graph.step import Floats

STARTING_COUNTS = "starting_counts.npz"
"""Made by `scripts/make_starting_counts.py`."""
MOST_SURE, MOST_SURE_JOINTLY, FEWEST_SEEN = 200.0, 40.0, 4.0
"""Sightings that starting counts claim at most, of claims and of their combinations, and that are worth keeping."""
JOINT_BITS = 15
UNSEEN_CHANCE = 0.15
"""Of a claim that was never made."""
UNSEEN_WEIGHT = 0.05
FIRST_WEIGHT = 0.45
ASSUMED_WEIGHT = 0.9
"""Of a voice whose chances were assumed."""


class Chances:
    """Counts, starting from nothing. `starts`: where each voice's claims begin."""

    def __init__(self, claims: Sequence[int]) -> None:
        sizes = [FIRST_CLAIM + n_claims for n_claims in claims]
        self.starts = [sum(sizes[:place]) for place in range(len(sizes))]
        chance_of, logit_of = _tables()
        self._tables = (chance_of, logit_of)
        self.counts = np.zeros(sum(sizes), COUNT)
        self.counts["logit"] = np.log(UNSEEN_CHANCE / (1 - UNSEEN_CHANCE))
        self.joint = np.zeros(1 << JOINT_BITS, JOINT)
        self.weights = np.zeros(VOICES + 1, np.float32)
        self.weights[: len(sizes)] = FIRST_WEIGHT
        self.calibration = chance_of[:: TABLE_STEPS // POINTS].copy()
        self._record = np.zeros(1, CHANCES)
        self._record["calibration"] = self.calibration.ctypes.data
        self._record["counts"] = self.counts.ctypes.data
        self._record["weights"] = self.weights.ctypes.data
        self._record["joint"], self._record["joint_bits"] = self.joint.ctypes.data, JOINT_BITS
        self._record["chance_of"], self._record["logit_of"] = chance_of.ctypes.data, logit_of.ctypes.data

    @property
    def address(self) -> int:
        return int(self._record.ctypes.data)

    def assume(self, voice: int, first_claim: int, chances: Sequence[float], n_seen: float) -> None:
        """Begin with claims of a voice, from its `first_claim` on, as if each had been seen so often, so likely."""
        claims = self.counts[self.starts[voice] + FIRST_CLAIM + first_claim :][: len(chances)]
        claims["seen"], claims["accepted"] = n_seen, n_seen * np.array(chances)
        claims["logit"] = np.log(np.array(chances) / (1 - np.array(chances)))
        self.weights[voice] = ASSUMED_WEIGHT

    def kept(self) -> dict[str, NDArray[Any]]:
        """The counts, to be kept, or to be written over by kept ones."""
        return {"counts": self.counts, "joint": self.joint, "weights": self.weights, "calibration": self.calibration}


def _tables() -> tuple[Floats, Floats]:
    """Probabilities of logits from -LOGIT_RANGE to LOGIT_RANGE, and logits of probabilities from 0 to 1."""
    logits = np.linspace(-LOGIT_RANGE, LOGIT_RANGE, TABLE_STEPS + 1)
    least = 1 / (1 + np.exp(LOGIT_RANGE))  # so that no logit lies beyond the tables
    shares = np.linspace(0, 1, TABLE_STEPS + 1).clip(least, 1 - least)
    return (1 / (1 + np.exp(-logits))).astype(np.float32), np.log(shares / (1 - shares)).astype(np.float32)


def fill(arrays: Mapping[str, NDArray[Any]], found: Mapping[str, NDArray[Any]], prefix: str) -> None:
    """Write found arrays over these, where there is one of the same kind; a damaged number counts as none."""
    for name, array in arrays.items():
        other = found.get(prefix + name)
        if other is not None and other.shape == array.shape and other.dtype == array.dtype and _is_finite(other):
            array[...] = other


def _is_finite(array: NDArray[Any]) -> bool:
    fields = [array[name] for name in array.dtype.names] if array.dtype.names else [array]
    return all(bool(np.isfinite(field).all()) for field in fields)


def start(chances: Chances, voices: Mapping[str, int], version: int, mode: str) -> None:
    """Take over the counts that every model starts with. `voices`: how many claims each can make.

    Voices that those counts do not know start from nothing; so do, where there are any, combinations of claims.
    """
    with (importlib.resources.files(__package__) / STARTING_COUNTS).open("rb") as file, np.load(file) as arrays:
        if "version" not in arrays.files or int(arrays["version"]) != version:
            return
        names, sizes = arrays["voices"].tolist(), arrays["claims"].tolist()
        counts, weights = arrays[f"{mode}.counts"], arrays[f"{mode}.weights"]
        known, at = {}, 0
        for place, (name, size) in enumerate(zip(names, sizes, strict=True)):
            known[name] = place, size, counts[at : at + FIRST_CLAIM + size]
            at += FIRST_CLAIM + size
        for place, (name, size) in enumerate(voices.items()):
            if name in known and known[name][1] == size:
                first = chances.starts[place]
                chances.counts[first : first + FIRST_CLAIM + size] = known[name][2]
                chances.weights[place] = weights[known[name][0]]
        chances.weights[len(voices)] = weights[len(names)]
        chances.calibration[:] = arrays[f"{mode}.calibration"]
        if list(voices) == names:
            chances.joint[arrays[f"{mode}.places"]] = arrays[f"{mode}.joint"]


def compact(chances: Chances, mode: str) -> dict[str, NDArray[Any]]:
    """Counts as `start` reads them: only combinations that were seen a few times, and none too sure."""
    counts, joint = chances.counts.copy(), chances.joint.copy()
    for array, most in ((counts, MOST_SURE), (joint, MOST_SURE_JOINTLY)):
        share = np.minimum(1, most / np.maximum(array["seen"], 1))
        array["seen"] *= share
        array["accepted"] *= share
    places = np.flatnonzero(joint["seen"] >= FEWEST_SEEN).astype(np.int32)
    return {
        f"{mode}.counts": counts,
        f"{mode}.weights": chances.weights,
        f"{mode}.calibration": chances.calibration,
        f"{mode}.places": places,
        f"{mode}.joint": joint[places],
    }
