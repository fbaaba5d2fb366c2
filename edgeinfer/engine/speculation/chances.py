"""What came of the voices' claims: the counts behind every estimate of a candidate's chance.

In: how many claims each voice can make. Out: memory that the loops read and update. Greedy and sampled text have counts
of their own: a voice is right less often where tokens are drawn.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from edgeinfer.engine.speculation.records import (
    CHANCES,
    COUNT,
    FIRST_CLAIM,
    JOINT,
    LOGIT_RANGE,
    TABLE_STEPS,
    VOICES,
)

JOINT_BITS = 15
UNSEEN_CHANCE = 0.15
"""Of a claim that was never made."""
UNSEEN_WEIGHT = 0.05
FIRST_WEIGHT = 0.45


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
        self._record = np.zeros(1, CHANCES)
        self._record["counts"] = self.counts.ctypes.data
        self._record["weights"] = self.weights.ctypes.data
        self._record["joint"], self._record["joint_bits"] = self.joint.ctypes.data, JOINT_BITS
        self._record["chance_of"], self._record["logit_of"] = chance_of.ctypes.data, logit_of.ctypes.data

    @property
    def address(self) -> int:
        return int(self._record.ctypes.data)


def _tables() -> tuple[np.ndarray, np.ndarray]:  # type: ignore[type-arg]
    """Probabilities of logits from -LOGIT_RANGE to LOGIT_RANGE, and logits of probabilities from 0 to 1."""
    logits = np.linspace(-LOGIT_RANGE, LOGIT_RANGE, TABLE_STEPS + 1)
    shares = np.linspace(0, 1, TABLE_STEPS + 1).clip(0.5 / TABLE_STEPS, 1 - 0.5 / TABLE_STEPS)
    return (1 / (1 + np.exp(-logits))).astype(np.float32), np.log(shares / (1 - shares)).astype(np.float32)
