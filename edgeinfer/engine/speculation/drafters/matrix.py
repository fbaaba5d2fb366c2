"""How often tokens followed pairs of tokens, in texts and in the model's own choices."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from edgeinfer.engine.speculation.drafters import Drafter, DraftSource, TokenLog, loop
from edgeinfer.engine.speculation.records import BEST, MATRIX
from edgeinfer.graph.step import Int32s
from edgeinfer.jit.library import KernelLibrary

WAYS, SET_BITS = 2, 14
BUCKETS = 3 * 5 * 4


class SuccessorMatrix:
    """The trigram matrix of a model."""

    def __init__(self, n_vocab: int, library: KernelLibrary) -> None:
        self.rows: Int32s = np.full((1 << SET_BITS, WAYS, 2 + 2 * BEST), -1, np.int32)

    @property
    def nbytes(self) -> int:
        return self.rows.nbytes

    def session(self) -> Counting:
        """Create a session that counts into the matrix."""
        return Counting(self)

    def arrays(self) -> Mapping[str, Int32s]:
        """The whole matrix."""
        return {"rows": self.rows}


class Counting:
    """One session, which counts into the matrix of its model."""

    def __init__(self, matrix: SuccessorMatrix) -> None:
        self._record = np.zeros(1, MATRIX)
        self._record["rows"], self._record["bits"] = matrix.rows.ctypes.data, SET_BITS
        self._record["clock"] = int(matrix.rows[..., 1].max())

    @property
    def address(self) -> int:
        return int(self._record.ctypes.data)

    def follow(self, log: TokenLog) -> None:
        """Continue in a log whose memory moved, or that began anew."""
        self._record["log"] = log.address
        self._record["n_read"] = min(int(self._record["n_read"][0]), log.n_tokens)

    def reserve(self, n_tokens: int) -> None:
        """Do nothing: the size is fixed."""


DRAFTER = Drafter(
    draft_sources=(DraftSource("matrix", loop("matrix", "speak"), BUCKETS),),
    open=SuccessorMatrix,
    read=loop("matrix", "read"),
    learn=loop("matrix", "learn"),
)
