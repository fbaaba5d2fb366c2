"""What a draft model's logits and the known noise say of draws: counted, told to the tree, kept for next time."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from edgeinfer.engine.loading import load
from edgeinfer.engine.requests.drafting import Draft, Walk
from edgeinfer.engine.speculation.records import BEST, TOKEN_BITS
from edgeinfer.engine.speculation.session_drafts import SessionDrafts
from edgeinfer.engine.speculation.win_counts import MOST_FORESEEN, MOST_SEEN, Foreseen, WinCounts
from edgeinfer.graph.step import Int32s
from tests.conftest import write_tiny_llama

MESSAGES = [{"role": "user", "content": "the rain in the inn and the rain in the inn"}]
SAMPLED = {"temperature": 0.8, "top_p": 0.95, "seed": 3, "repeat_penalty": 1.1}


def packed(logits: NDArray[np.float64]) -> Int32s:
    """Logits of tokens 0, 1, ..., highest first, as `loops.best` packs them."""
    order = (-logits).argsort()
    gaps = (16 * (logits[order[0]] - logits[order])).astype(np.int32)
    gaps[0] = gaps[1]
    return order.astype(np.int32) | gaps << TOKEN_BITS


def mean(*chances: float) -> float:
    """The probability whose logit is the mean of theirs."""
    odds = np.array(chances).clip(0.0004, 0.9996)
    return float(1 / (1 + np.exp(-np.log(odds / (1 - odds)).mean())))


def draws(counts: WinCounts, n: int, seed: int, off: float, *, notes: bool = True) -> list[tuple[Foreseen, int | None]]:
    """What is foreseen of draws from logits that lie N(0, off) beside the draft model's, and the rank that was drawn.

    One token of ten is none of the row's.
    """
    rng, found = np.random.default_rng(seed), list[tuple[Foreseen, int | None]]()
    for _ in range(n):
        logits, gumbels = rng.normal(0, 2, BEST), rng.gumbel(size=BEST)
        row = packed(logits)
        tokens = row & ((1 << TOKEN_BITS) - 1)
        drawn = int((logits + rng.normal(0, off, BEST) + gumbels).argmax()) if rng.random() < 0.9 else -1
        foreseen = counts.foresee(row, gumbels[tokens])
        ranks = (tokens[foreseen.order] == drawn).nonzero()[0]
        found.append((foreseen, int(ranks[0]) if len(ranks) else None))
        if notes:
            counts.note(*found[-1])
    return found


@pytest.mark.parametrize("off", [0.3, 1.0, 2.0])
def test_tokens_are_drawn_as_often_as_foreseen(off: float) -> None:
    counts = WinCounts()
    draws(counts, 4000, 1, off)
    later = draws(counts, 4000, 2, off, notes=False)
    told = np.array([[win, rank == place] for each, rank in later for place, win in enumerate(each.wins)])
    for low, high in ((0.0, 0.02), (0.02, 0.1), (0.1, 0.3), (0.3, 0.6), (0.6, 1.0)):
        part = told[(told[:, 0] >= low) & (told[:, 0] < high)]
        assert len(part) > 50 or off != 1.0
        assert len(part) < 50 or part[:, 0].mean() == pytest.approx(part[:, 1].mean(), abs=0.05)
    assert max(each.wins.sum() for each, _ in later) <= MOST_FORESEEN + 1e-9


def test_the_order_is_that_of_logits_and_noise() -> None:
    """With the same logits as the model's, the first is drawn whenever it is one of the row's."""
    counts = WinCounts()
    found = draws(counts, 1000, 1, 0.0)
    assert {rank for _, rank in found} <= {0, 1, None}  # 1: gaps are rounded
    assert sum(rank == 0 for _, rank in found) > 850
    assert found[-1][0].wins[0] > 0.8


def test_recent_draws_count_more() -> None:
    counts = WinCounts()
    draws(counts, 3 * MOST_SEEN, 1, 3.0)
    assert counts.counts[0].max() <= MOST_SEEN + 1
    before = np.mean([each.wins[0] for each, _ in draws(counts, 200, 2, 3.0, notes=False)])
    draws(counts, 2 * MOST_SEEN, 3, 0.1)
    assert np.mean([each.wins[0] for each, _ in draws(counts, 200, 2, 3.0, notes=False)]) > before + 0.1


def test_the_tree_takes_what_is_foreseen(tiny_model: Path, tmp_path: Path, home: Path) -> None:
    """At every node that the draft model was run at: for its own tokens, the mean with what the counts alone say."""
    second = write_tiny_llama(tmp_path / "other.gguf", seed=7)
    n_known, n_others, learn = 0, 0, SessionDrafts.learn

    def watched(self: SessionDrafts, draft: Draft, walked: Walk, seconds: float | None) -> None:
        nonlocal n_known, n_others
        chain, node = self._chain, 0
        assert chain is not None
        assert self._noise is not None
        for place in range(chain.n_rows):
            first, count = self._arrays["offers"][node].tolist()
            own = self._arrays["candidates"][first : first + count]
            wins = dict(zip((chain._rows[place] & ((1 << TOKEN_BITS) - 1)).tolist(), chain._wins[place], strict=True))
            gumbels = -np.log(self._noise.exponentials(self._n_drawn + place, own["token"].astype(np.int64)))
            alone = self._acceptance.win_chances(own["chance"].astype(float), gumbels)
            free = dict(zip(own["token"].tolist(), alone.tolist(), strict=True))
            for token, win in zip(own["token"].tolist(), own["win"].tolist(), strict=True):
                n_known += token in wins
                n_others += token not in wins
                if token in wins:
                    assert win == pytest.approx(mean(free[token], wins[token]), abs=0.03)
            after = [child for child in range(len(draft.tokens)) if draft.parents[child] == node]
            reaches = self._arrays["reaches"]
            assert sum(reaches[child] for child in after) <= 0.99 * reaches[node]
            node = next((child for child in after if draft.tokens[child] == chain._tokens[place]), -1)
            if node < 0:
                break
        learn(self, draft, walked, seconds)

    with pytest.MonkeyPatch.context() as patch, load(tiny_model, threads=1, spec=6, draft_from=[second]) as llm:
        patch.setattr(SessionDrafts, "learn", watched)
        for _ in range(2):
            llm.chat(MESSAGES, max_tokens=60, **SAMPLED).read()  # type: ignore[arg-type]
    assert n_known > 300
    assert n_others > 0


def test_counts_are_kept_for_next_time(tiny_model: Path, home: Path) -> None:
    def counts() -> Int32s:
        assert llm.drafts is not None
        return llm.drafts.tables["draft_model"].arrays()["wins"].copy()

    with load(tiny_model, threads=1, spec=6, draft_from=[tiny_model], history=True) as llm:
        llm.chat(MESSAGES, max_tokens=60, temperature=0).read()
        assert counts().sum() == 0  # nothing was drawn
        llm.chat(MESSAGES, max_tokens=60, **SAMPLED).read()  # type: ignore[arg-type]
        known = counts()
        assert known[0].sum() >= BEST * 20
        assert known[1].sum() <= known[0].sum() / BEST
    with load(tiny_model, threads=1, spec=6, draft_from=[tiny_model], history=True) as llm:
        assert np.array_equal(counts(), known)
