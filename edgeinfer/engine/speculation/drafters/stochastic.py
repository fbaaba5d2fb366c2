"""The likeliest successors of bigrams and trigrams with their logits (STAND, arXiv 2506.04708)."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from edgeinfer.backends.base import Int32s
from edgeinfer.backends.cpu.library import KernelLibrary
from edgeinfer.engine.speculation.drafters import Drafter, Voice, loop
from edgeinfer.engine.speculation.log import TokenLog
from edgeinfer.engine.speculation.records import BEST, STANDINGS, SUCCESSORS

WAYS, SET_BITS = 4, 14


class NGramSuccessors:
    """BEST successors of the n-grams that were evaluated last, of two and of three tokens."""

    def __init__(self, n_vocab: int, library: KernelLibrary) -> None:
        self.rows = np.full((2, 1 << SET_BITS, WAYS, 2 + BEST), -1, np.int32)
        self._record = np.zeros(2, SUCCESSORS)
        self._record["bits"] = SET_BITS
        self._record["rows"] = [table.ctypes.data for table in self.rows]

    @property
    def address(self) -> int:
        return int(self._record.ctypes.data)

    @property
    def nbytes(self) -> int:
        return self.rows.nbytes

    def session(self) -> NGramSuccessors:
        """The same for all."""
        return self

    def kept(self) -> Mapping[str, Int32s]:
        """All rows."""
        return {"rows": self.rows}

    def follow(self, log: TokenLog) -> None:
        """Successors belong to no text."""

    def reserve(self, n_tokens: int) -> None:
        """Its size is fixed."""


DRAFTER = Drafter(
    voices=(
        Voice("trigram", loop("stochastic", "speak_trigram"), STANDINGS),
        Voice("bigram", loop("stochastic", "speak_bigram"), STANDINGS),
    ),
    open=NGramSuccessors,
    learn=loop("stochastic", "learn"),
)
