"""Candidates of drawn text, ranked with all their noise known: against NumPy, facts, and where the table stays."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from edgeinfer.engine.requests.drafting import Walk
from edgeinfer.engine.requests.noise import Noise
from edgeinfer.engine.requests.sampling import Distribution, SamplingSettings
from edgeinfer.engine.speculation.drafts import ModelDrafts
from edgeinfer.engine.speculation.draw_ranking import MOST_PENALISED, DrawRanking, penalty_of
from edgeinfer.engine.speculation.records import (
    AVERAGED,
    FACTS,
    LEAST_REST,
    MOST_GAP,
    MOST_USUAL,
    TOKEN_BITS,
    UNITS,
    USUAL_UNIT,
)
from edgeinfer.engine.speculation.session_drafts import SessionDrafts
from edgeinfer.graph.step import Floats
from tests.unit.engine.speculation.drafting import follow, logits_for, model_drafts, repeating

TEXT = repeating(300)
NOISE = Noise.of(9)
PENALISING = SamplingSettings(repeat_penalty=1.2, penalty_window=7)


def drafted(settings: SamplingSettings | None = PENALISING) -> tuple[ModelDrafts, SessionDrafts]:
    """A tree of drawn text, by drafts that know a text."""
    drafts = model_drafts(fixed=16)
    follow(drafts.session(), TEXT, 100)
    session = drafts.session()
    session.begin(TEXT[:200], NOISE, settings)
    session.draft(TEXT[:200], 16, 8)
    return drafts, session


def logits(chances: Floats) -> Floats:
    """Logits, bounded as the loops bound them."""
    least = 1 / (1 + np.exp(8.0))
    bounded = np.asarray(chances, float).clip(least, 1 - least)
    return np.log(bounded / (1 - bounded))


def path_to(session: SessionDrafts, node: int) -> list[int]:
    """The text up to a node."""
    path, arrays = [], session._arrays
    while node:
        path.append(int(arrays["tokens"][node]))
        node = int(arrays["parents"][node])
    return TEXT[:200] + path[::-1]


def wins_of(drafts: ModelDrafts, session: SessionDrafts, node: int, settings: SamplingSettings | None) -> Floats:
    """The probabilities of a node's candidates, in NumPy."""
    ranking, acceptance = drafts.ranking, drafts.acceptance[True]
    assert ranking is not None
    first, count = session._arrays["offers"][node]
    own = session._arrays["candidates"][first : first + count]
    text, tokens = path_to(session, node), own["token"]
    estimates = logits(own["chance"])
    top, second = sorted([*estimates, -8.0, -8.0])[-1:-3:-1]
    rest = logits(np.maximum(1 - own["chance"].sum(), LEAST_REST))
    gumbels = -np.log(NOISE.exponentials(len(text) - 200, tokens.astype(np.int64)))
    n_penalised, penalty = penalty_of(settings)
    penalised = penalty * np.isin(tokens, text[max(0, len(text) - n_penalised) :])
    row = ranking.means[text[-2]]
    two_after = np.array([max([0.0, *row["mean"][row["token"] == token]]) for token in tokens])
    usual = logits(np.minimum(USUAL_UNIT * ranking.usual[tokens] / ranking.scale, MOST_USUAL))
    said = acceptance.counts["logit"][own["buckets"][:, : len(drafts.draft_sources)]]
    one = np.ones(count)
    facts = [one, rest * one, top * one, second * one, estimates, estimates - top, gumbels, penalised]
    units = np.stack([*facts, logits(two_after), usual, *said.T], 1) @ ranking.weights[:-2]
    scores = np.append(np.maximum(units, 0) @ ranking.weights[-2], ranking.weights[-1, :4] @ [1, rest, top, second])
    shares = np.exp(scores - scores.max())
    return np.asarray(shares[:-1] / shares.sum())


@pytest.mark.parametrize("settings", [None, PENALISING, SamplingSettings(presence_penalty=0.7, penalty_window=-1)])
def test_the_network_is_what_numpy_makes_of_the_same_facts(settings: SamplingSettings | None) -> None:
    drafts, session = drafted(settings)
    n_nodes, checked = int(session._fields["n_nodes"]), 0
    for node in range(n_nodes):
        first, count = session._arrays["offers"][node]
        if count:
            wins = session._arrays["candidates"]["ranked"][first : first + count]
            assert wins == pytest.approx(wins_of(drafts, session, node, settings), abs=0.02)
            checked += 1
    assert checked > 4


@pytest.mark.parametrize(("error", "table_error", "name"), [(0.2, 0.3, "ranked"), (0.3, 0.2, "looked_up")])
def test_candidates_are_ranked_by_what_was_closer_lately(error: float, table_error: float, name: str) -> None:
    drafts, session = drafted()
    assert drafts.ranking is not None
    drafts.ranking._record["error"], drafts.ranking._record["table_error"] = error, table_error
    draft = session.draft(TEXT[:200], 16, 8)
    candidates = session._arrays["candidates"][: int(session._fields["n_candidates"])]
    assert (candidates["win"] == candidates[name]).all()
    assert (candidates["ranked"] != candidates["looked_up"]).any()
    best = candidates[candidates["node"] == 0]
    assert draft.tokens[1] == best["token"][best["win"].argmax()]


def test_how_far_off_both_were_is_learnt_from_what_is_drawn() -> None:
    drafts, session = drafted()
    ranking, errors = drafts.ranking, {"ranked": 0.0, "looked_up": 0.0}
    assert ranking is not None
    ranking._record["error"] = ranking._record["table_error"] = 0.0
    drawn = Distribution(np.array([3, TEXT[200]]), np.array([0.5, 0.5]))
    for _ in range(5):
        draft = session.draft(TEXT[:200], 16, 8)
        own = session._arrays["candidates"][: session._arrays["offers"][0][1]].copy()
        session.look(draft, logits_for([1] * len(draft.tokens)), None)
        session.learn(draft, Walk([TEXT[200]], np.zeros(1, np.int32), [drawn]), None)
        for name in errors:
            squares = (own[name].astype(float) - (own["token"] == TEXT[200])) ** 2
            errors[name] += 0.01 * (squares.sum() - errors[name])
    assert float(ranking._record["error"][0]) == pytest.approx(errors["ranked"], rel=1e-4)
    assert float(ranking._record["table_error"][0]) == pytest.approx(errors["looked_up"], rel=1e-4)
    assert errors["ranked"] > 0


def test_penalties_lower_what_the_text_had_a_short_while_ago() -> None:
    """The sum over candidates that both have, of those among the last tokens."""
    window = SamplingSettings(repeat_penalty=1.3, penalty_window=64)
    sums = []
    for settings in (None, window):
        _, session = drafted(settings)
        own = session._arrays["candidates"][: session._arrays["offers"][0][1]]
        recent = np.isin(own["token"], TEXT[200 - 64 : 200])
        assert recent.any()
        sums.append(float(own["ranked"][recent].sum()))
    assert sums[1] < sums[0]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (None, (0, 0.0)),
        (SamplingSettings(), (0, 0.0)),
        (SamplingSettings(repeat_penalty=1.1), (64, 1.0)),
        (SamplingSettings(repeat_penalty=1.21, penalty_window=9), (9, 2.0)),
        (SamplingSettings(frequency_penalty=1.5, penalty_window=-1), (MOST_PENALISED, 1.0)),
        (SamplingSettings(repeat_penalty=100.0, penalty_window=0), (0, 3.0)),
        (SamplingSettings(repeat_penalty=0.01), (64, -3.0)),
    ],
)
def test_how_strong_penalties_are(settings: SamplingSettings | None, expected: tuple[int, float]) -> None:
    assert penalty_of(settings) == pytest.approx(expected)


def packed(tokens: Sequence[int], gaps: Sequence[int]) -> np.ndarray:
    """A row of kept logits."""
    return np.array([token | min(gap, MOST_GAP) << TOKEN_BITS for token, gap in zip(tokens, gaps, strict=True)])


def test_means_of_kept_logits_are_those_of_plain_python() -> None:
    """Rows of more tokens than a mean has room for, until the scale of all means is made small again."""
    drafts, draw = model_drafts(fixed=1), np.random.default_rng(4)
    session, ranking = drafts.session(), drafts.ranking
    assert ranking is not None
    means: dict[int, float] = {}
    usual = np.zeros(300)
    for number in range(40):
        session.begin([5, 6])
        session.draft([5, 6], 1, 0)
        tokens = draw.permutation(12 if number < 30 else 60)[:8]
        gaps = np.sort(draw.integers(0, 60, 8))
        gaps[0] = 0
        shares = np.exp(-gaps / 16) / np.exp(-gaps / 16).sum()
        session._arrays["rows"][0] = packed(tokens.tolist(), gaps.tolist())
        if number == 20:
            ranking.usual *= 2e20 / ranking.scale
            ranking.scale = 2e20
        learn_one(session)
        rate = max(1 / (number + 1), 0.05)
        means = {token: mean * (1 - rate) for token, mean in means.items()}
        usual *= 1 - 0.002
        for token, share in zip(tokens.tolist(), shares.tolist(), strict=True):
            usual[token] += 0.002 * share
            if token not in means and len(means) == AVERAGED:
                rarest = min(means, key=lambda each: means[each])
                if means[rarest] >= rate * share:
                    continue
                del means[rarest]
            means[token] = means.get(token, 0.0) + rate * share
    row = ranking.means[5]
    kept = {int(token): float(mean) for token, mean in row.tolist() if mean > 0}
    assert kept == pytest.approx(means, rel=1e-3)
    assert len(kept) == AVERAGED
    assert ranking.usual / ranking.scale == pytest.approx(usual, rel=1e-3, abs=1e-7)
    assert ranking.scale < 2
    assert not ranking.means[np.arange(len(ranking.means)) != 5]["mean"].any()


def learn_one(session: SessionDrafts) -> None:
    """Learn from the root alone; the rows are there."""
    session._arrays["path"][0], session._arrays["chosen"][0] = 0, 0
    session._fields["n_path"] = 1
    session._shared.learn(session.address)


def test_weights_belong_to_the_draft_sources_that_they_were_made_with() -> None:
    names = list(model_drafts().buckets)
    usual = DrawRanking(names, 300).weights
    assert usual.shape == (FACTS + len(names) + 2, UNITS)
    assert np.isfinite(usual).all()
    assert usual[FACTS:-2].any(1).all()
    other = DrawRanking(["new", *reversed(names)], 300).weights
    assert not other[FACTS].any()
    assert (other[FACTS + 1 : -2] == usual[FACTS:-2][::-1]).all()
    assert (other[:FACTS] == usual[:FACTS]).all()
    assert (other[-2:] == usual[-2:]).all()


def test_greedy_trees_know_nothing_of_the_ranking_of_draws() -> None:
    trees = []
    for factor in (1.0, -3.0):
        drafts = model_drafts(fixed=16)
        assert drafts.ranking is not None
        drafts.ranking.weights *= np.float32(factor)
        trees.append([draft.tokens.tolist() for draft in follow(drafts.session(), TEXT, 100)])
    assert trees[0] == trees[1]
