"""A second, smaller model with the same vocabulary (speculative decoding, arXiv 2211.17192; 2302.01318).

It runs before a tree is grown: `engine.speculation.draft_model` runs it, and this drafter proposes what it predicted.
Registered only if there is a draft model.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from edgeinfer.engine.speculation.drafters import Drafter, DraftSource, TokenLog, loop
from edgeinfer.engine.speculation.records import BEST, CHAIN, MOST_CHAINED, STANDINGS, TOKEN_BITS
from edgeinfer.graph.step import Int32s
from edgeinfer.jit.library import KernelLibrary

LIKELIEST_ACCEPTANCE = (0.35, 0.5, 0.65, 0.8, 0.9, 0.97)
"""Assumed probability that the likeliest token is right, by its lead, before anything is known of a draft model;"""
ASSUMED_SEEN = 8.0
"""and the number of sightings that it counts as."""


class Chains:
    """The chains of all sessions: each session has its own."""

    nbytes = MOST_CHAINED * (1 + BEST) * 4

    def __init__(self, n_vocab: int, library: KernelLibrary) -> None:
        """Creates nothing: sessions share nothing."""

    def session(self) -> Chain:
        """Create a chain for one more session."""
        return Chain()

    def arrays(self) -> Mapping[str, Int32s]:
        """Nothing to save: the draft model can compute it again."""
        return {}


class Chain:
    """Tokens that the draft model predicts next, and its highest logits before each of them."""

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
        """Number of tokens of the chain."""
        return int(self._record["n_rows"][0])

    def clear(self) -> None:
        """Drop the chain, since the text has moved on."""
        self._record["n_rows"] = 0

    def add(self, row: Int32s, rank: int) -> int:
        """Add the highest logits after the chain, int32[BEST] packed by `loops.best`; append the token of a rank."""
        place, token = self.n_rows, int(row[rank]) & ((1 << TOKEN_BITS) - 1)
        self._rows[place], self._tokens[place] = row, token
        self._record["n_rows"] = place + 1
        return token

    def follow(self, log: TokenLog) -> None:
        """Do nothing: texts are not used."""

    def reserve(self, n_tokens: int) -> None:
        """Do nothing: the size is fixed."""


DRAFTER = Drafter(draft_sources=(DraftSource("draft_model", loop("chain", "speak"), STANDINGS),), open=Chains)
