"""When to run a draft model, for which texts of a pass, and for how many tokens.

In: the texts of a pass, what the other drafters offer for each, costs of passes. Out: for some texts a chain of the
draft model's choices with their highest logits, written to the drafter's tables. A round is one pass of the draft model
over all texts that it goes on with, so many texts wait as long as one. A text takes part while that raises the expected
tokens per second of all texts of the pass together: what is known is how often its tokens were right, and what a round
takes. A text goes on with the token that would be chosen from the draft model's own logits, with the text's settings
and noise. Where few texts take part, a round also verifies what the other drafters expect next, so that the draft model
itself is drafted for (hierarchical drafting, arXiv 2505.22179). Source of the rule: as `loops.growth`.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate

import numpy as np

from edgeinfer.engine.requests.drafting import Draft, DraftRoom
from edgeinfer.engine.requests.noise import Doubles, Noise
from edgeinfer.engine.requests.sampling import SamplingSettings, draw_weights
from edgeinfer.engine.speculation.acceptance import AcceptanceEstimator
from edgeinfer.engine.speculation.costs import Costs
from edgeinfer.engine.speculation.draft_followers import Follower
from edgeinfer.engine.speculation.draft_model import DraftModel
from edgeinfer.engine.speculation.drafters.draft_model import Chain
from edgeinfer.engine.speculation.records import (
    BEST,
    FIRST_BUCKET,
    GAP_EDGES,
    GAPS,
    MOST,
    MOST_CHAINED,
    MOST_GAP,
    STANDINGS,
    TOKEN_BITS,
    TOKEN_MASK,
)
from edgeinfer.engine.speculation.win_counts import Foreseen, WinCounts
from edgeinfer.graph.step import Int32s

FIRST_WEIGHT = 4.0
"""How many sightings the assumed probability that a draft model's likeliest token is right counts as."""
FEW = 4
"""A pass of up to this many tokens takes about as long as one of a single token; beyond that, time is proportional."""
UNASKED = 128
"""Passes without the draft model after which it runs for one token, so that what is known of it stays current."""
RECENT = 1 / 16
"""Weight of a new time in the moving average."""


@dataclass(frozen=True, slots=True)
class NextDraws:
    """How the next tokens of a text are chosen. noise: that of its draws, None if they are the likeliest tokens.

    acceptance: what is known of such texts; n_drawn: number of the draw after the tokens so far; settings: what changes
    logits before a draw, None if that is unknown.
    """

    acceptance: AcceptanceEstimator
    noise: Noise | None
    n_drawn: int
    settings: SamplingSettings | None = None

    def weighed(self, row: Int32s, highest: float, history: Sequence[int], path: Sequence[int]) -> Int32s:
        """A row of highest logits after penalties, temperature and the like, as tokens of this text are drawn.

        row: packed; highest: the first of them; history, path: the tokens before.
        """
        settings = self.settings
        if settings is None or settings.takes_likeliest:
            return row
        tokens, gaps = (row & TOKEN_MASK).astype(np.int64), row >> TOKEN_BITS
        gaps[0] = 0
        window = max(0, len(history) - settings.penalty_window) if settings.penalty_window >= 0 else 0
        logits = (highest - gaps / 16).astype(np.float32)
        weights = draw_weights(settings, tokens, logits, [*history[window:], *path])
        order = np.argsort(-weights, kind="stable")
        lower = np.minimum(-16 * weights[order], MOST_GAP).astype(np.int32)
        lower[0] = lower[1]
        return tokens[order].astype(np.int32) | lower << TOKEN_BITS

    def best(self, row: Int32s, place: int, chances: Doubles, counts: WinCounts) -> Chosen:
        """The token that most probably comes `place` draws from now.

        row: highest logits, packed; chances: how likely a token is right, float64[BEST, GAPS] by rank and gap; counts:
        of what was drawn. If it is known how tokens are drawn, the token is the one that would be drawn from the row:
        argmax of log q + g, with q the draft model's probabilities and g the noise (DESIGN §7; the coupling of arXiv
        2408.07978).
        """
        own = chances[np.arange(BEST), np.searchsorted(GAP_EDGES, row >> TOKEN_BITS, side="right")]
        if self.noise is None:
            return Chosen(0, float(own[0]))
        gumbels = -np.log(self.noise.exponentials(self.n_drawn + place, (row & TOKEN_MASK).astype(np.int64)))
        if self.settings is None:
            wins = self.acceptance.win_chances(own, gumbels)
            return Chosen(int(wins.argmax()), float(wins.max()))
        foreseen = counts.foresee(row, gumbels)
        return Chosen(int(foreseen.order[0]), float(foreseen.wins[0]), foreseen)


@dataclass(frozen=True, slots=True)
class Chosen:
    """The token that a draft model goes on with: its rank in a row, how probable it is, and what is foreseen of all."""

    rank: int
    chance: float
    foreseen: Foreseen | None = None


@dataclass(slots=True, eq=False)
class Offer:
    """A text of a pass: what the other drafters offer for it, and what may come of the draft model.

    history: the tokens so far; most: tokens that the draft model may add; n_pages: pages that a draft takes; expected:
    tokens that the tree without it gives; tree: that one. `chance` and `chances`: how likely the draft model's choice
    is right, overall and, float64[BEST, GAPS], by its rank and gap; draws: what else decides. reach, total: of its
    chain, the probability of all of it, and the tokens that it gives.
    """

    follower: Follower
    chain: Chain
    history: Sequence[int]
    most: int
    n_pages: int
    expected: float
    tree: Draft
    chance: float
    chances: Doubles
    draws: NextDraws
    reach: float = field(default=1.0, init=False)
    total: float = field(default=1.0, init=False)
    path: list[int] = field(default_factory=list, init=False)
    """Tokens of its chain;"""
    won: list[float] = field(default_factory=list, init=False)
    """and how probable each was."""

    @property
    def n_nodes(self) -> int:
        """Number of nodes of the tree without the draft model."""
        return len(self.tree.tokens)

    def add(self, row: Int32s, highest: float) -> int:
        """Add the highest logits after the chain, the first of which is `highest`; the token that probably follows."""
        row = self.draws.weighed(row, highest, self.history, self.path)
        chosen = self.draws.best(row, self.chain.n_rows, self.chances, self.chain.counts)
        self.won.append(chosen.chance)
        self.reach *= chosen.chance
        self.total += self.reach
        token = self.chain.add(row, chosen.rank, chosen.foreseen)
        self.path.append(token)
        return token

    def ahead(self, n_tokens: int) -> list[int]:
        """Up to `n_tokens` tokens that follow the chain in the tree, at each node the likeliest."""
        tokens, parents = self.tree.tokens.tolist(), self.tree.parents.tolist()
        found, node, depth = list[int](), 0, 0
        n_tokens = min(n_tokens, self.most - len(self.path) - 1)
        while len(found) < n_tokens:
            known = self.path[depth] if depth < len(self.path) else None
            below = (each for each in range(node + 1, len(tokens)) if parents[each] == node)
            child = next((each for each in below if known is None or tokens[each] == known), None)
            if child is None:
                break
            if known is None:
                found.append(tokens[child])
            node, depth = child, depth + 1
        return found

    @property
    def gain(self) -> float:
        """Tokens that one more round should add."""
        return self.reach * self.chance


class DraftRounds:
    """Runs one draft model for all texts of a model. `is_fixed`: for as many tokens as fit, whatever they cost."""

    def __init__(self, model: DraftModel, costs: Costs, first_bucket: int, *, is_fixed: bool) -> None:
        """`first_bucket`: index of the first bucket of its draft source in the counts."""
        self._model, self._costs, self._is_fixed = model, costs, is_fixed
        self._buckets = slice(first_bucket + FIRST_BUCKET, first_bucket + FIRST_BUCKET + STANDINGS)
        self._usual_win = model.first_chance  # of a choice for a text that is drawn
        self._token_s = 0.0
        self._n_unasked = UNASKED
        self.seconds = 0.0
        """Seconds spent for the current pass."""

    def begin(self) -> None:
        """A new pass, for which nothing was spent yet."""
        self.seconds = 0.0

    def chances(self, draws: NextDraws) -> tuple[float, Doubles]:
        """Probability that the draft model's choice is right; and that of each token by its rank and gap."""
        counts = draws.acceptance.counts[self._buckets].reshape(BEST, GAPS)
        seen, accepted = counts["seen"].astype(float), counts["accepted"].astype(float)
        usual = float((accepted[0].sum() + FIRST_WEIGHT * self._model.first_chance) / (seen[0].sum() + FIRST_WEIGHT))
        likeliest = (accepted[0] + FIRST_WEIGHT * usual) / (seen[0] + FIRST_WEIGHT)
        lower = np.exp(-np.array((0, *GAP_EDGES)) / 16) * (1 - usual) / 2
        first = np.vstack([likeliest, np.broadcast_to(lower, (BEST - 1, GAPS))])
        chances = (accepted + FIRST_WEIGHT * first) / (seen + FIRST_WEIGHT)
        return usual if draws.noise is None else self._usual_win, chances

    def ask(self, offers: Sequence[Offer], room: DraftRoom) -> bool:
        """Run the draft model for those texts where that should pay; returns whether it drafted anything.

        The chains of all texts must be empty.
        """
        self.begin()
        able = [each for each in offers if each.most > 0]
        if not able:
            return False
        chosen = able if self._is_fixed else self._chosen(able, offers, room)
        if not chosen and self._n_unasked >= UNASKED:
            chosen = able[:1]
        n_pages = accumulate(each.n_pages for each in chosen)
        chosen = [each for each, needed in zip(chosen, n_pages, strict=True) if needed <= room.n_pages]
        if not chosen:
            self._n_unasked += 1
            return False
        try:
            self._follow(chosen, offers, room)
        finally:
            for each in chosen:
                each.follower.finish()
        self._n_unasked = 0 if self._token_s else UNASKED  # a first round may say nothing of what others take
        return any(each.chain.n_rows for each in chosen)

    def _follow(self, chosen: Sequence[Offer], offers: Sequence[Offer], room: DraftRoom) -> None:
        """Run rounds for as long as some text gains by one more."""
        started = time.perf_counter()
        tokens = self._model.read(chosen, self._ahead(chosen))
        asked, going = list[Offer](), list(chosen)
        while True:
            self._measure(time.perf_counter() - started - self.seconds)
            asked += [each for each in going if each.chain.n_rows and each not in asked]
            able = [
                place
                for place, (each, token) in enumerate(zip(going, tokens, strict=True))
                if token is not None and each.chain.n_rows < each.most
            ]
            able = able if self._is_fixed else self._worth(able, going, asked, offers, room)
            if not able:
                break
            given = [token for place in able if (token := tokens[place]) is not None]
            going = [going[place] for place in able]
            tokens = self._model.go_on(going, given, self._ahead(going))
        for win in (win for each in chosen if each.draws.noise is not None for win in each.won):
            self._usual_win += (win - self._usual_win) * RECENT
        self.seconds = time.perf_counter() - started

    def _ahead(self, texts: Sequence[Offer]) -> list[Sequence[int]]:
        """What the other drafters expect after each text, as far as a round takes no longer for it."""
        n_tokens = FEW // len(texts) - 1
        return [each.ahead(n_tokens) if n_tokens > 0 else () for each in texts]

    def _measure(self, round_s: float) -> None:
        """Note the time of a round."""
        self.seconds += round_s
        n_run = self._model.n_run
        if 0 < n_run <= MOST:
            token_s = round_s / max(1.0, n_run / FEW)
            self._token_s += (token_s - self._token_s) * (RECENT if self._token_s else 1.0)

    def _chosen(self, able: Sequence[Offer], offers: Sequence[Offer], room: DraftRoom) -> list[Offer]:
        """The texts for which some number of rounds, at the usual acceptance, would be better than none.

        The less the other drafters offer for a text, the more it gains.
        """
        n_nodes, expected = sum(each.n_nodes for each in offers), sum(each.expected for each in offers)
        best, found = self._rate(room, expected, n_nodes, 0.0), 0
        totals, sizes = [0.0] * (MOST_CHAINED + 1), [0] * (MOST_CHAINED + 1)  # by rounds, of the texts so far
        order = sorted(able, key=lambda each: each.expected)
        for count, each in enumerate(order, 1):
            n_nodes, expected = n_nodes - each.n_nodes, expected - each.expected
            reach, total = 1.0, 1.0
            for n_rounds in range(1, MOST_CHAINED + 1):
                reach *= each.chance if n_rounds <= each.most else 0.0
                total += reach
                totals[n_rounds] += total
                sizes[n_rounds] += 1 + min(n_rounds, each.most)
                if n_nodes + sizes[n_rounds] <= room.n_tokens:
                    asked_s = n_rounds * self._round_s(count)
                    rate = self._rate(room, expected + totals[n_rounds], n_nodes + sizes[n_rounds], asked_s)
                    if rate > best:
                        best, found = rate, count
        return order[:found]

    def _worth(
        self,
        wanted: list[int],
        going: Sequence[Offer],
        asked: Sequence[Offer],
        offers: Sequence[Offer],
        room: DraftRoom,
    ) -> list[int]:
        """Those of the `wanted` for which one more round is better than verifying what there is."""
        others = [each for each in offers if not each.chain.n_rows]
        n_tokens = sum(each.n_nodes for each in others) + sum(1 + each.chain.n_rows for each in asked)
        expected = sum(each.expected for each in others) + sum(each.total for each in asked)
        best, found = self._rate(room, expected, n_tokens, self.seconds), 0
        order = sorted(wanted, key=lambda place: -going[place].gain)
        for count, place in enumerate(order, 1):
            expected += going[place].gain
            if n_tokens + count > room.n_tokens:
                break
            rate = self._rate(room, expected, n_tokens + count, self.seconds + self._round_s(count))
            if rate > best:
                best, found = rate, count
        return order[:found]

    def _round_s(self, n_texts: int) -> float:
        """Seconds that a round over this many texts should take."""
        return (self._token_s or self._model.assumed_s(self._costs)) * max(1.0, n_texts / FEW)

    def _rate(self, room: DraftRoom, expected: float, n_tokens: int, asked_s: float) -> float:
        """Tokens of all texts of the pass per cost, after the draft model has run for some time."""
        unit_s = self._costs.unit_s
        cost = float(self._costs.curve[min(room.n_others + n_tokens, MOST)])
        return (room.expected + expected) / (cost + (asked_s / unit_s if unit_s else 0.0))
