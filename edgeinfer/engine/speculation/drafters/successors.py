"""The likeliest successors of bigrams and trigrams, with their logits, as last computed by the model."""

from __future__ import annotations

import numpy as np

from edgeinfer.engine.speculation.drafters import Drafter, DraftSource, SessionTables, SharedRows, loop
from edgeinfer.engine.speculation.records import BEST, STANDINGS, SUCCESSORS
from edgeinfer.jit.library import KernelLibrary

WAYS, SET_BITS = 4, 14


class NGramSuccessors(SharedRows):
    """BEST successors of the most recently evaluated bigrams and trigrams."""

    def __init__(self, n_vocab: int, library: KernelLibrary) -> None:
        rows, record = np.full((2, 1 << SET_BITS, WAYS, 2 + BEST), -1, np.int32), np.zeros(2, SUCCESSORS)
        record["bits"], record["rows"] = SET_BITS, [table.ctypes.data for table in rows]
        super().__init__(rows, record)

    def session(self) -> SessionTables:
        """Return these tables, which all sessions share; rows stored from now on are newer than those present."""
        self._record["clock"] = self.rows[..., 1].max(axis=(1, 2))
        return super().session()


DRAFTER = Drafter(
    draft_sources=(
        DraftSource("trigram", loop("successors", "speak_trigram"), STANDINGS),
        DraftSource("bigram", loop("successors", "speak_bigram"), STANDINGS),
    ),
    open=NGramSuccessors,
    learn=loop("successors", "learn"),
)
