"""N-grams of the session's own text, five lengths of them (ANPD, arXiv 2404.08698)."""

from __future__ import annotations

import numpy as np

from edgeinfer.engine.speculation.drafters import Drafter, Voice, loop
from edgeinfer.engine.speculation.log import TokenLog
from edgeinfer.engine.speculation.records import NGRAM

LEVELS, CLAIMS = 5, 81
HASH_BITS = 14


class NGramTables:
    """Where n-grams ended, for one log."""

    def __init__(self, n_vocab: int) -> None:
        self._record = np.zeros(1, NGRAM)
        self._heads = np.full((LEVELS, 1 << HASH_BITS), -1, np.int32)
        self._previous = np.empty((LEVELS, 0), np.int32)
        self._record["heads"], self._record["bits"] = self._heads.ctypes.data, HASH_BITS

    @property
    def address(self) -> int:
        return int(self._record.ctypes.data)

    @property
    def nbytes(self) -> int:
        return self._heads.nbytes + self._previous.nbytes

    def follow(self, log: TokenLog) -> None:
        """Index a log from its start."""
        self._heads.fill(-1)
        self._previous = np.empty((LEVELS, log.capacity), np.int32)
        self._record["log"], self._record["n_read"] = log.address, 0
        self._record["previous"], self._record["capacity"] = self._previous.ctypes.data, log.capacity


DRAFTER = Drafter(
    voices=(Voice("ngram", loop("ngram", "speak"), CLAIMS),),
    open=NGramTables,
    per="session",
    read=loop("ngram", "read"),
)
