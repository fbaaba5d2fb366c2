"""A second, smaller model with the same vocabulary (speculative decoding, arXiv 2211.17192; 2302.01318).

It runs before a tree is grown: `engine.speculation.draft_model` runs it, and this drafter proposes what it predicted.
Registered only if there is a draft model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from edgeinfer.engine.speculation.drafters import Drafter, DraftSource, TokenLog, loop
from edgeinfer.engine.speculation.records import BEST, CHAIN, MOST_CHAINED, STANDINGS, TOKEN_BITS
from edgeinfer.engine.speculation.win_counts import Foreseen, WinCounts
from edgeinfer.graph.step import Int32s
from edgeinfer.jit.library import KernelLibrary

LIKELIEST_ACCEPTANCE = (0.35, 0.5, 0.65, 0.8, 0.9, 0.97)
"""Assumed probability that the likeliest token is right, by its lead, before anything is known of a draft model;"""
ASSUMED_SEEN = 8.0
"""and the number of sightings that it counts as."""
MASK = (1 << TOKEN_BITS) - 1
UNKNOWN = -1.0


class Chains:
    """The chains of all sessions: each session has its own. They share counts of which tokens are drawn."""

    nbytes = MOST_CHAINED * (1 + 2 * BEST) * 4

    def __init__(self, n_vocab: int, library: KernelLibrary) -> None:
        self._counts = WinCounts()

    def session(self) -> Chain:
        """Create a chain for one more session."""
        return Chain(self._counts)

    def arrays(self) -> Mapping[str, Int32s]:
        """The counts: chains the draft model can compute again."""
        return {"wins": self._counts.counts}


class Chain:
    """Tokens that the draft model predicts next, and its highest logits before each of them.

    With what is foreseen of draws, if it is known how tokens are drawn.
    """

    def __init__(self, counts: WinCounts) -> None:
        self.counts = counts
        self._foreseen: list[Foreseen | None] = []
        self._tokens = np.zeros(MOST_CHAINED, np.int32)
        self._rows = np.zeros((MOST_CHAINED, BEST), np.int32)
        self._wins = np.zeros((MOST_CHAINED, BEST), np.float32)
        self._record = np.zeros(1, CHAIN)
        self._record["tokens"], self._record["rows"] = self._tokens.ctypes.data, self._rows.ctypes.data
        self._record["wins"] = self._wins.ctypes.data

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
        self._foreseen.clear()

    def add(self, row: Int32s, rank: int, foreseen: Foreseen | None = None) -> int:
        """Add the highest logits after the chain, int32[BEST] packed by `loops.best`; append the token of a rank."""
        place, token = self.n_rows, int(row[rank]) & MASK
        self._rows[place], self._tokens[place] = row, token
        if foreseen is None:
            self._wins[place] = UNKNOWN
        else:
            self._wins[place, foreseen.order] = foreseen.wins
        self._foreseen.append(foreseen)
        self._record["n_rows"] = place + 1
        return token

    def learn(self, tokens: Sequence[int], draws: Sequence[object | None]) -> None:
        """Count what was drawn after as much of the chain as was right. draws: None for tokens that were not drawn."""
        for place, (token, draw) in enumerate(zip(tokens[: self.n_rows], draws, strict=False)):
            foreseen = self._foreseen[place]
            if foreseen is not None and draw is not None:
                found = (self._rows[place, foreseen.order] & MASK == token).nonzero()[0]
                self.counts.note(foreseen, int(found[0]) if len(found) else None)
            if token != self._tokens[place]:
                break

    def follow(self, log: TokenLog) -> None:
        """Do nothing: texts are not used."""

    def reserve(self, n_tokens: int) -> None:
        """Do nothing: the size is fixed."""


DRAFTER = Drafter(draft_sources=(DraftSource("draft_model", loop("chain", "speak"), STANDINGS),), open=Chains)
