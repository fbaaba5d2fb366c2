"""Trains what ranks the candidates of drawn text, `ranking_weights.npz`, from what drafting knew at every draw.

Run from the repository root: `python scripts/train_ranking.py MODEL.gguf [--out FILE] [--every 3]`. The model answers
conversations of `make_starting_counts.py`, none of which comes from a benchmark, each once as `chat` does by default
and once without penalties, and drafts as at a first start. Noted at every token: the facts of each candidate, as
`loops.ranking` has them, and its probability. Training draws noise anew for every step, so each place teaches many
draws. No fact depends on a vocabulary or a model. Takes some minutes; `python scripts/replay_drafts.py MODEL QUESTIONS`
shows how much is accepted.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from make_starting_counts import conversations
from numpy.typing import NDArray
from replay_drafts import ALL, Replay, Trie, Way

from edgeinfer.engine.loading import load
from edgeinfer.engine.requests.noise import Noise
from edgeinfer.engine.requests.request import Options
from edgeinfer.engine.requests.sampling import Distribution, SamplingSettings
from edgeinfer.engine.speculation.drafts import ModelDrafts
from edgeinfer.engine.speculation.draw_ranking import RANKING_WEIGHTS, penalty_of
from edgeinfer.engine.speculation.records import EACH, FACTS, LEAST_REST, MOST_USUAL, ROW_BITS, UNITS, USUAL_UNIT
from edgeinfer.graph.step import Floats

ROOT = Path(__file__).resolve().parent.parent
BUDGET, ANSWER_TOKENS = 8, 192
STEPS, BATCH, RATE, DECAY = 3000, 384, 0.01, 1e-4
NODE, GUMBEL = 4, 6
"""Facts of a node come first, the constant one among them; where the noise is."""
LARGEST = 3.0
"""Facts are divided by this while training."""


def logit(table: Floats, chances: Floats) -> Floats:
    """Logits as the loops take them, from their table."""
    return np.asarray(table[(chances * (len(table) - 1)).astype(int).clip(0, len(table) - 1)])


@dataclass(slots=True)
class Places:
    """Where tokens were drawn: facts float32[N, EACH, F], probabilities float32[N, EACH], numbers of candidates."""

    facts: list[Floats] = field(default_factory=list)
    chances: list[Floats] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)

    def add(self, facts: Floats, chances: Floats) -> None:
        """Add a place with at least one candidate."""
        padded = np.zeros((EACH, facts.shape[1] + 1), np.float32)
        padded[: len(facts), :-1], padded[: len(facts), -1] = facts, chances
        self.facts.append(padded[:, :-1])
        self.chances.append(padded[:, -1])
        self.counts.append(len(facts))


@dataclass(slots=True)
class WatchedWay(Way):
    """Notes all candidates wherever a token was drawn."""

    places: Places = field(default_factory=Places)
    _text: list[int] = field(default_factory=list)
    _window: tuple[int, float] = (0, 0.0)

    def begin(self, history: Sequence[int], noise: Noise | None, settings: SamplingSettings) -> None:
        """Begin an answer."""
        self._window = penalty_of(settings)
        Way.begin(self, history, noise, settings)

    def start(self, history: Sequence[int], n_answered: int, n_left: int, trie: Trie) -> None:
        """Begin a pass."""
        self._text = list(history)
        Way.start(self, history, n_answered, n_left, trie)

    def go_on(self, token: int, draw: Distribution | None, is_last: bool) -> None:
        """Note the place, and go on."""
        assert self.session is not None
        first, count = self.session._arrays["offers"][self._path[-1]]
        if count and draw is not None:
            candidates = self.session._arrays["candidates"][first : first + count]
            known = dict(zip(draw.tokens.tolist(), draw.probabilities.tolist(), strict=True))
            chances = np.array([known.get(each, 0.0) for each in candidates["token"].tolist()], np.float32)
            self.places.add(facts_of(self.drafts, candidates, self._text + self._chosen, self._window), chances)
        Way.go_on(self, token, draw, is_last)


def facts_of(
    drafts: ModelDrafts, candidates: NDArray[np.void], text: Sequence[int], window: tuple[int, float]
) -> Floats:
    """The facts of a node's candidates, as `loops.ranking` has them, their noise 0: float32[n, FACTS + sources]."""
    acceptance, ranking = drafts.acceptance[True], drafts.ranking
    assert ranking is not None
    table, tokens, chances = acceptance._tables[1], candidates["token"], candidates["chance"]
    own = logit(table, chances)
    top, second = np.append(-np.sort(-own), np.full(2, -8.0))[:2]
    rest = logit(table, np.maximum(1 - chances.sum(keepdims=True), np.float32(LEAST_REST)))[0]
    n_last, strength = window
    penalised = np.isin(tokens, text[-n_last:]) * strength if n_last else np.zeros(len(tokens))
    row = ranking.means[(text[-2] if len(text) > 1 else text[-1]) & ((1 << ROW_BITS) - 1)]
    two_after = np.where(tokens[:, None] == row["token"], row["mean"], 0).max(1)
    usual = np.minimum(USUAL_UNIT * ranking.usual[tokens] / ranking.scale, MOST_USUAL)
    said = acceptance.counts["logit"][candidates["buckets"][:, : len(drafts.draft_sources)]]
    one = np.ones(len(tokens))
    columns = [one, one * rest, one * top, one * second, own, own - top, 0 * one, penalised]
    columns += [logit(table, two_after), logit(table, usual.astype(np.float32)), *said.T]
    return np.stack(columns, 1).astype(np.float32)


class Training:
    """One layer of rectified units for candidates, a linear score for other tokens, Adam (arXiv 1412.6980)."""

    def __init__(self, places: Places, seed: int = 0) -> None:
        self._random = np.random.default_rng(seed)
        self._chances, self._counts = np.array(places.chances), np.array(places.counts)
        self._facts = np.array(places.facts)[:, : self._counts.max()] / np.float32(LARGEST)
        self._chances = self._chances[:, : self._counts.max()]
        n_facts = self._facts.shape[2]
        self.units = self._random.normal(0, n_facts**-0.5, (n_facts, UNITS))
        self.sums, self.others = self._random.normal(0, UNITS**-0.5, UNITS), np.zeros(NODE)
        self._moments = [np.zeros((2, *each.shape)) for each in self._parameters]

    @property
    def _parameters(self) -> tuple[NDArray[np.float64], ...]:
        return self.units, self.sums, self.others

    def step(self, number: int) -> float:
        """One step; returns the loss before."""
        rows = self._random.integers(0, len(self._facts), BATCH)
        facts, chances = self._facts[rows].astype(np.float64), self._chances[rows]
        there = np.arange(facts.shape[1]) < self._counts[rows, None]
        gumbels = self._random.gumbel(size=(BATCH, facts.shape[1] + 1))
        facts[:, :, GUMBEL] = np.where(there, gumbels[:, :-1], 0) / LARGEST
        logs = np.log(np.maximum(np.c_[chances, np.maximum(1 - chances.sum(1), 1e-9)], 1e-30))
        drawn = (logs + gumbels).argmax(1)
        node = facts[:, 0, :NODE]
        sums = facts @ self.units
        units = np.maximum(sums, 0)
        scores = np.c_[np.where(there, units @ self.sums, -80.0), node @ self.others]
        wins = np.exp(scores - scores.max(1, keepdims=True))
        wins /= wins.sum(1, keepdims=True)
        loss = float(-np.log(wins[np.arange(BATCH), drawn] + 1e-9).mean())
        wins[np.arange(BATCH), drawn] -= 1
        wins /= BATCH
        errors = np.where(there, wins[:, :-1], 0)
        at_units = errors[..., None] * self.sums * (sums > 0)
        gradients = (
            np.tensordot(facts, at_units, ((0, 1), (0, 1))),
            np.tensordot(errors, units, ((0, 1), (0, 1))),
            node.T @ wins[:, -1],
        )
        rate = RATE * min(1, number / 100) * (1 + np.cos(np.pi * number / STEPS)) / 2
        for own, gradient, (mean, square) in zip(self._parameters, gradients, self._moments, strict=True):
            gradient = gradient + DECAY * own
            mean += 0.1 * (gradient - mean)
            square += 0.01 * (gradient**2 - square)
            own -= rate * (mean / (1 - 0.9**number)) / (np.sqrt(square / (1 - 0.99**number)) + 1e-8)
        return loss


def record(model: Path, every: int) -> tuple[Places, list[str]]:
    """Let a model answer; the places, and names of draft sources."""
    with load(model, spec=BUDGET, n_context=4096, history=False) as llm:
        assert llm.drafts is not None
        if not llm.drafts.n_primed:
            llm.prime()
        way = WatchedWay(ALL, llm.drafts.twin())
        replay = Replay(llm, [way], ANSWER_TOKENS)
        plain: tuple[Options, ...] = ({"seed": 1}, {"seed": 2, "repeat_penalty": 1.0})
        with llm._pool.lock:
            for number, turns in enumerate(list(conversations())[::every]):
                for options in plain:
                    way.drafts = llm.drafts.twin()
                    replay.lead(turns, {**options, "max_tokens": ANSWER_TOKENS})
                print(f"{number + 1} conversations, {len(way.places.counts)} places", flush=True)
        return way.places, list(llm.drafts.buckets)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--out", type=Path, default=ROOT / "edgeinfer" / "engine" / "speculation" / RANKING_WEIGHTS)
    parser.add_argument("--every", type=int, default=3, help="only every N-th conversation")
    options = parser.parse_args()
    places, names = record(options.model, options.every)
    training = Training(places)
    losses = [training.step(number) for number in range(1, STEPS + 1)]
    units = (training.units / LARGEST).astype(np.float32)
    others = np.zeros(UNITS, np.float32)
    others[:NODE] = training.others / LARGEST
    arrays = {"facts": units[:FACTS], "sources": units[FACTS:], "sums": training.sums.astype(np.float32)}
    np.savez_compressed(options.out, draft_sources=np.array(names), others=others, **arrays)
    print(f"{options.out}: {len(places.counts)} places, loss {np.mean(losses[-300:]):.3f}")


if __name__ == "__main__":
    main()
