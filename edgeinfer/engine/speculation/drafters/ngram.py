"""N-grams of the session's own text, of five lengths (ANPD, arXiv 2404.08698)."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from edgeinfer.engine.speculation.drafters import Drafter, DraftSource, TokenLog, loop
from edgeinfer.engine.speculation.records import NGRAM
from edgeinfer.graph.step import Int32s
from edgeinfer.jit.library import KernelLibrary

LEVELS, BUCKETS = 5, 81
HASH_BITS = 14


class NGrams:
    """Holds nothing: each session has an index of its own text."""

    def __init__(self, n_vocab: int, library: KernelLibrary) -> None:
        self.nbytes = 0

    def session(self) -> NGramIndex:
        """Create an empty index."""
        return NGramIndex()

    def arrays(self) -> Mapping[str, Int32s]:
        """Nothing to save."""
        return {}


class NGramIndex:
    """The positions at which n-grams ended in one log."""

    def __init__(self) -> None:
        self._record = np.zeros(1, NGRAM)
        self._heads = np.full((LEVELS, 1 << HASH_BITS), -1, np.int32)
        self._previous = np.empty((LEVELS, 0), np.int32)
        self._record["heads"], self._record["bits"] = self._heads.ctypes.data, HASH_BITS

    @property
    def address(self) -> int:
        return int(self._record.ctypes.data)

    def follow(self, log: TokenLog) -> None:
        """Index a log from its start."""
        self._heads.fill(-1)
        self._previous = np.empty((LEVELS, log.capacity), np.int32)
        self._record["log"], self._record["n_read"] = log.address, 0
        self._record["previous"], self._record["capacity"] = self._previous.ctypes.data, log.capacity

    def reserve(self, n_tokens: int) -> None:
        """Make the index as large as the log."""


DRAFTER = Drafter(
    draft_sources=(DraftSource("ngram", loop("ngram", "speak"), BUCKETS),),
    open=NGrams,
    read=loop("ngram", "read"),
)
