"""What `loops.ranking` needs to rank the candidates of drawn text: weights, means of logits, how strong penalties are.

In: names of draft sources, settings of a text. Out: records that the loops read. Weights are the same for all models:
they weigh what is counted for each. Knows no texts; the means are forgotten with the model.
"""

from __future__ import annotations

import importlib.resources
import math
from collections.abc import Sequence

import numpy as np

from edgeinfer.engine.requests.sampling import SamplingSettings
from edgeinfer.engine.speculation.drafters import loop
from edgeinfer.engine.speculation.records import AVERAGED, FACTS, RANKING, ROW_BITS, UNITS
from edgeinfer.graph.step import Floats

RANKING_WEIGHTS = "ranking_weights.npz"
"""Written by `scripts/train_ranking.py`."""
LEARN_AVERAGES = loop("averages", "learn")
MOST_PENALISED = 256
"""Penalties that look at more tokens are taken to look at the last ones."""
USUAL_PENALTY, USUAL_LOGITS = 1.1, 1.5
"""A repeat penalty of strength 1, and the logits that it takes from likely tokens."""
MOST_PENALTY = 3.0


class DrawRanking:
    """Weights, and means of what a model's passes gave. `draft_sources`: all names, in order."""

    def __init__(self, draft_sources: Sequence[str], n_vocab: int) -> None:
        self.weights = _weights(draft_sources)
        self.means = np.zeros((1 << ROW_BITS, AVERAGED), np.dtype([("token", "i4"), ("mean", "f4")]))
        self._counts = np.zeros(1 << ROW_BITS, np.int32)
        self.usual = np.zeros(n_vocab, np.float32)
        self._record = np.zeros(1, RANKING)
        self._record["weights"], self._record["rows"] = self.weights.ctypes.data, self.means.ctypes.data
        self._record["counts"], self._record["usual"] = self._counts.ctypes.data, self.usual.ctypes.data
        self.scale = 1.0

    @property
    def address(self) -> int:
        """Of the record."""
        return int(self._record.ctypes.data)

    @property
    def scale(self) -> float:
        """What means of tokens anywhere are multiplied by."""
        return float(self._record["scale"][0])

    @scale.setter
    def scale(self, scale: float) -> None:
        self._record["scale"] = scale

    @property
    def nbytes(self) -> int:
        return self.means.nbytes + self._counts.nbytes + self.usual.nbytes


def _weights(draft_sources: Sequence[str]) -> Floats:
    """The weights for these draft sources: float32[FACTS + n + 2, UNITS]. What unknown ones say counts nothing."""
    with (importlib.resources.files(__package__) / RANKING_WEIGHTS).open("rb") as file, np.load(file) as arrays:
        own = dict(zip(arrays["draft_sources"].tolist(), arrays["sources"], strict=True))
        facts, sums, others = arrays["facts"], arrays["sums"], arrays["others"]
    unknown = np.zeros(UNITS, np.float32)
    rows = [*facts, *(own.get(name, unknown) for name in draft_sources), sums, others]
    assert len(facts) == FACTS
    return np.array(rows, np.float32)


def penalty_of(settings: SamplingSettings | None) -> tuple[int, float]:
    """How many of the last tokens penalties look at, and how strong they are; (0, 0.0) without penalties."""
    if settings is None:
        return 0, 0.0
    flat = settings.presence_penalty + settings.frequency_penalty
    strength = math.log(settings.repeat_penalty) / math.log(USUAL_PENALTY) + flat / USUAL_LOGITS
    if strength == 0:
        return 0, 0.0
    n_penalised = MOST_PENALISED if settings.penalty_window < 0 else min(settings.penalty_window, MOST_PENALISED)
    return n_penalised, min(max(strength, -MOST_PENALTY), MOST_PENALTY)
