"""A second, smaller model with the same vocabulary (speculative decoding, arXiv 2211.17192; 2302.01318).

It is asked before a tree is grown: `engine.speculation.draft_model` runs it, this says what came of it. Belongs to the
drafters only where there is such a model.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from edgeinfer.engine.speculation.drafters import Drafter, DraftSource, loop
from edgeinfer.engine.speculation.log import TokenLog
from edgeinfer.engine.speculation.records import BEST, CHAIN, MOST_CHAINED, STANDINGS, TOKEN_BITS
from edgeinfer.graph.step import Int32s
from edgeinfer.jit.library import KernelLibrary

LIKELIEST_ACCEPTANCE = (0.35, 0.5, 0.65, 0.8, 0.9, 0.97)
"""That the likeliest token is right, by how far it is ahead, before anything is known of a draft model; it counts as"""
ASSUMED_SEEN = 8.0
"""sightings."""


class Chains:
    """Of all sessions: each has its own."""

    nbytes = MOST_CHAINED * (1 + BEST) * 4

    def __init__(self, n_vocab: int, library: KernelLibrary) -> None:
        """Nothing is shared."""

    def session(self) -> Chain:
        """One more chain."""
        return Chain()

    def arrays(self) -> Mapping[str, Int32s]:
        """Nothing: the draft model says it again."""
        return {}


class Chain:
    """Tokens that the draft model thinks come next, and its highest logits before each of them."""

    def __init__(self) -> None:
        self._tokens = np.zeros(MOST_CHAINED, np.int32)
        self._rows = np.zeros((MOST_CHAINED, BEST), np.int32)
        self._record = np.zeros(1, CHAIN)
        self._record["tokens"], self._record["rows"] = self._tokens.ctypes.data, self._rows.ctypes.data

    @property
    def address(self) -> int:
        return int(self._record.ctypes.data)

    @property
    def n_rows(self) -> int:
        """Tokens of the chain."""
        return int(self._record["n_rows"][0])

    def clear(self) -> None:
        """The text has moved on."""
        self._record["n_rows"] = 0

    def add(self, row: Int32s) -> int:
        """Highest logits after the chain so far, int32[BEST] as `loops.best` packs them; the likeliest token joins."""
        place, token = self.n_rows, int(row[0]) & ((1 << TOKEN_BITS) - 1)
        self._rows[place], self._tokens[place] = row, token
        self._record["n_rows"] = place + 1
        return token

    def follow(self, log: TokenLog) -> None:
        """Texts are not looked at."""

    def reserve(self, n_tokens: int) -> None:
        """Its size is fixed."""


DRAFTER = Drafter(draft_sources=(DraftSource("draft_model", loop("chain", "speak"), STANDINGS),), open=Chains)
