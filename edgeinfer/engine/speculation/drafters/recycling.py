"""The likeliest successors of each token, as the model saw them last (Token Recycling, arXiv 2408.08696)."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from edgeinfer.backends.base import Int32s
from edgeinfer.backends.cpu.library import KernelLibrary
from edgeinfer.engine.speculation.drafters import Drafter, Voice, loop
from edgeinfer.engine.speculation.log import TokenLog
from edgeinfer.engine.speculation.records import BEST, NO_TOKEN, STANDINGS, SUCCESSORS


class SuccessorTable:
    """BEST successors of every token of a vocabulary."""

    def __init__(self, n_vocab: int, library: KernelLibrary) -> None:
        self.rows = np.full((n_vocab, BEST), NO_TOKEN, np.int32)
        self._record = np.zeros(1, SUCCESSORS)
        self._record["rows"] = self.rows.ctypes.data

    @property
    def address(self) -> int:
        return int(self._record.ctypes.data)

    @property
    def nbytes(self) -> int:
        return self.rows.nbytes

    def prime(self, first: int, rows: Int32s) -> None:
        """Take over rows of tokens from `first` on whose successors are not known."""
        own = self.rows[first : first + len(rows)]
        unknown = own[:, 0] < 0
        own[unknown] = rows[unknown]

    def session(self) -> SuccessorTable:
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
    voices=(Voice("recycling", loop("recycling", "speak"), STANDINGS),),
    open=SuccessorTable,
    learn=loop("recycling", "learn"),
)
