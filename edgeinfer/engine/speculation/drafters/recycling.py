"""The likeliest successors of each token, as last computed by the model (Token Recycling, arXiv 2408.08696)."""

from __future__ import annotations

import numpy as np

from edgeinfer.engine.speculation.drafters import Drafter, DraftSource, SharedRows, loop
from edgeinfer.engine.speculation.records import BEST, NO_TOKEN, STANDINGS, SUCCESSORS
from edgeinfer.graph.step import Int32s
from edgeinfer.jit.library import KernelLibrary


class SuccessorTable(SharedRows):
    """BEST successors of every token of a vocabulary."""

    def __init__(self, n_vocab: int, library: KernelLibrary) -> None:
        rows, record = np.full((n_vocab, BEST), NO_TOKEN, np.int32), np.zeros(1, SUCCESSORS)
        record["rows"] = rows.ctypes.data
        super().__init__(rows, record)

    def prime(self, first: int, rows: Int32s) -> None:
        """Store the rows of tokens from `first` on, for those whose successors are not known."""
        own = self.rows[first : first + len(rows)]
        unknown = own[:, 0] < 0
        own[unknown] = rows[unknown]


DRAFTER = Drafter(
    draft_sources=(DraftSource("recycling", loop("recycling", "speak"), STANDINGS),),
    open=SuccessorTable,
    learn=loop("recycling", "learn"),
)
