"""How often tokens of a draft model's rows are drawn, by what its own probabilities and the noise of the draw say.

In: the highest logits of a row, as tokens of a text are drawn from them, and the noise g of these tokens. Out: the
probability that each of them is drawn. Of the draft model's own distribution q the highest log q + g would be drawn;
its logits are not quite the model's, so a token further down may be. How often is counted by its rank and by how far it
lies below the first (for the first: above the second). Every row that a text came to is counted, drafted or not.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from edgeinfer.engine.requests.noise import Doubles, Int64s
from edgeinfer.engine.speculation.records import BEST, GAP_EDGES, GAPS, TOKEN_BITS
from edgeinfer.graph.step import Int32s

FIRST_WINS = (0.45, 0.55, 0.65, 0.8, 0.9, 0.97)
"""Assumed probability that the first is drawn, by its lead, before anything is known of a draft model;"""
LOWER_SHARE = 0.4
"""and of those further down, as a share of e^-gap;"""
FIRST_WEIGHT = 4.0
"""and the number of sightings that these count as."""
MOST_SEEN = 2000
"""Counts are halved when they exceed this, so that recent outcomes count more."""
MOST_FORESEEN = 0.98
"""Upper limit for the summed probability of a row."""
STEPS = 16
"""Steps of a packed gap per logit."""


@dataclass(frozen=True, slots=True)
class Foreseen:
    """What is foreseen of a row's draw. order: int64[BEST], its tokens' places by log q + g, highest first; places:
    int64[BEST], where these are counted; wins: float64[BEST], how probable they are.
    """

    order: Int64s
    places: Int64s
    wins: Doubles


class WinCounts:
    """Counts by rank and gap: int32[2, BEST * GAPS], how often tokens were seen, and how often drawn."""

    def __init__(self) -> None:
        self.counts: Int32s = np.zeros((2, BEST * GAPS), np.int32)
        lower = LOWER_SHARE * np.exp(-np.array((0, *GAP_EDGES)) / STEPS)
        self._first = np.vstack([FIRST_WINS, np.broadcast_to(lower, (BEST - 1, GAPS))]).ravel()

    def foresee(self, row: Int32s, gumbels: Doubles) -> Foreseen:
        """What will be drawn in place of the draft model's own draw. row: packed as `loops.best` does."""
        scores = gumbels - (row >> TOKEN_BITS) / STEPS
        scores[0] = gumbels[0]
        order = (-scores).argsort()
        gaps = scores[order[0]] - scores[order]
        gaps[0] = gaps[1]
        places = np.searchsorted(GAP_EDGES, gaps * STEPS, side="right") + GAPS * np.arange(BEST)
        seen, drawn = self.counts[:, places]
        wins = (drawn + FIRST_WEIGHT * self._first[places]) / (seen + FIRST_WEIGHT)
        return Foreseen(order, places, wins * min(1.0, MOST_FORESEEN / float(wins.sum())))

    def note(self, foreseen: Foreseen, rank: int | None) -> None:
        """Count a row after its draw. `rank`: of the token drawn in the order foreseen; None for another token."""
        seen, drawn = self.counts
        seen[foreseen.places] += 1
        if rank is not None:
            drawn[foreseen.places[rank]] += 1
        if seen[foreseen.places].max() > MOST_SEEN:
            self.counts //= 2
