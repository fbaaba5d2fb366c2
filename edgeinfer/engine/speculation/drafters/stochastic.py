"""The likeliest successors of bigrams and trigrams with their logits (STAND, arXiv 2506.04708)."""

from __future__ import annotations

import numpy as np

from edgeinfer.engine.speculation.drafters import Drafter, Voice, loop
from edgeinfer.engine.speculation.log import TokenLog
from edgeinfer.engine.speculation.records import BEST, STANDINGS, SUCCESSORS

WAYS, SET_BITS = 4, 14


class NGramSuccessors:
    """BEST successors of the n-grams that were evaluated last, of two and of three tokens."""

    def __init__(self, n_vocab: int) -> None:
        self._rows = np.full((2, 1 << SET_BITS, WAYS, 2 + BEST), -1, np.int32)
        self._record = np.zeros(2, SUCCESSORS)
        self._record["bits"] = SET_BITS
        self._record["rows"] = [table.ctypes.data for table in self._rows]

    @property
    def address(self) -> int:
        return int(self._record.ctypes.data)

    @property
    def nbytes(self) -> int:
        return self._rows.nbytes

    def follow(self, log: TokenLog) -> None:
        """Successors belong to no text."""


DRAFTER = Drafter(
    voices=(
        Voice("trigram", loop("stochastic", "speak_trigram"), STANDINGS),
        Voice("bigram", loop("stochastic", "speak_bigram"), STANDINGS),
    ),
    open=NGramSuccessors,
    per="model",
    learn=loop("stochastic", "learn"),
)
