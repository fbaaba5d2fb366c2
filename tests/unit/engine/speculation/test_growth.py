"""The tree that is grown: well formed, best first, as large as pays; and what it learns."""

from __future__ import annotations

import numpy as np
import pytest

from edgeinfer.engine.requests.drafting import ROOT, Draft
from edgeinfer.engine.speculation.costs import Costs
from edgeinfer.engine.speculation.drafts import ModelDrafts, loops_library
from edgeinfer.engine.speculation.records import MOST
from tests.unit.engine.speculation.drafting import FLAT, N_VOCAB, follow, model_drafts, repeating

TEXT = repeating(400)


def check_form(draft: Draft, root: int, most: int, deepest: int) -> None:
    """The root first, parents before children, siblings different, within the limits."""
    tokens, parents = draft.tokens.tolist(), draft.parents.tolist()
    assert tokens[0] == root
    assert parents[0] == ROOT
    assert 1 <= len(tokens) <= most
    assert all(0 <= parent < node for node, parent in enumerate(parents[1:], 1))
    assert all(0 <= token < N_VOCAB for token in tokens)
    assert len(set(zip(parents, tokens, strict=True))) == len(tokens)
    assert draft.depths.max() <= deepest


@pytest.mark.parametrize("fixed", [None, 4, 64])
def test_trees_are_well_formed_and_the_likeliest_nodes_come_first(fixed: int | None) -> None:
    session = model_drafts(fixed=fixed).session()
    follow(session, TEXT, 100)
    for most, deepest in ((1, 0), (2, 1), (8, 2), (64, 16), (64, 1)):
        session.begin(TEXT[:300])
        draft = session.draft(TEXT[:300], most, deepest)
        check_form(draft, TEXT[299], min(most, fixed or MOST), deepest)
        reaches = session.reaches[: len(draft.tokens)]
        assert (np.diff(reaches) <= 1e-6).all()
        assert reaches[0] == 1
        assert (reaches > 0).all()
        assert all(reaches[node] <= reaches[draft.parents[node]] for node in range(1, len(reaches)))


@pytest.mark.parametrize("fixed", [None, 8])
def test_without_branches_drafts_are_chains_of_the_likeliest_tokens(fixed: int | None) -> None:
    drafted = [
        follow(ModelDrafts(loops_library(), N_VOCAB, costs, fixed, branches=branches).session(), TEXT, 100)
        for branches in (True, False)
        for costs in [Costs(FLAT, corrected=False)]
    ]
    assert any(len(set(draft.parents.tolist())) < len(draft.parents) for draft in drafted[0])
    for draft in drafted[1]:
        assert draft.parents.tolist() == list(range(-1, len(draft.tokens) - 1))
    assert len(drafted[1]) < 0.7 * (len(TEXT) - 100)


def test_a_text_that_repeats_itself_is_drafted_right() -> None:
    session = model_drafts().session()
    drafts = follow(session, TEXT, 100)
    n_tokens = len(TEXT) - 100
    assert len(drafts) < 0.6 * n_tokens
    report = session.report()
    assert report.n_passes == len(drafts)
    assert sum(count.accepted for count in report.sources.values()) == pytest.approx(n_tokens - len(drafts), abs=9)
    assert report.n_expected == pytest.approx(n_tokens, rel=0.4)
    assert report.seconds > 0


def test_the_tree_is_as_large_as_pays_most() -> None:
    """Against a search over all sizes of the largest tree, whose beginnings are the best trees of their size."""
    for costs in ({2: 1.1, 4: 1.2, 8: 1.4, 64: 6.0}, {2: 1.5, 64: 12.0}, {8: 1.02, 64: 1.2}, {2: 3.0, 64: 64.0}):
        drafts = model_drafts(costs)
        session = drafts.session()
        follow(session, TEXT, 100)
        largest = model_drafts(costs, fixed=MOST).session()
        largest._shared.acceptance[False].counts[:] = drafts.acceptance[False].counts
        largest._shared.acceptance[False].joint[:] = drafts.acceptance[False].joint
        largest._shared.acceptance[False].weights[:] = drafts.acceptance[False].weights
        for place in (150, 200, 333):
            for each in (session, largest):
                each._log.n_tokens, each._log._text = 0, []
                each._log._moved(each._log)
                each.begin(TEXT[:place])
            draft = session.draft(TEXT[:place], MOST, 16)
            largest.draft(TEXT[:place], MOST, 16)
            gained = np.cumsum(session.reaches[: len(draft.tokens)])
            rates = gained / drafts.costs.curve[1 : 1 + len(gained)]
            assert rates.argmax() == len(rates) - 1 or rates[-1] == pytest.approx(rates.max())
            if costs == {2: 3.0, 64: 64.0}:
                assert len(draft.tokens) == 1


def test_nothing_is_drafted_from_nothing() -> None:
    session = model_drafts({2: 1.3, 64: 40.0}).session()
    session.begin([7])
    assert session.draft([7], 64, 16).tokens.tolist() == [7]


def test_greedy_and_sampled_texts_are_counted_apart() -> None:
    drafts = model_drafts()
    before = drafts.acceptance[True].counts.copy()
    follow(drafts.session(), TEXT, 100)
    assert (drafts.acceptance[True].counts == before).all()
    assert (drafts.acceptance[False].counts != before).any()


def test_a_session_goes_on_with_its_text_and_begins_another() -> None:
    session = model_drafts().session()
    follow(session, TEXT[:200], 100)
    session.begin(TEXT[:260])
    assert [len(text) for text in session.texts()] == [260]
    session.begin([5, 6, 7])
    assert [len(text) for text in session.texts()] == [260, 3]
    session.begin([5, 6, 7, *TEXT])
    assert [len(text) for text in session.texts()] == [260, 403]


def test_however_long_an_answer_becomes_others_draft_from_it() -> None:
    """The automaton grows with it; at first it has room for a usual one."""
    drafts, text = model_drafts(), np.random.default_rng(3).integers(1, N_VOCAB, 24_000).tolist()
    session = drafts.session()
    session.begin(text[:50])
    for n_tokens in range(100, len(text) + 1, 50):
        session.draft(text[:n_tokens], 1, 0)
    assert session._reading.fields["n_read"] == len(text)
    other = drafts.session()
    other.begin(text[-40:-20])
    assert other.draft(text[-40:-20], 16, 8).tokens[1] == text[-20]


def test_what_one_session_read_another_drafts_from() -> None:
    drafts = model_drafts()
    one, other = drafts.session(), drafts.session()
    follow(one, TEXT, 100)
    other.begin(TEXT[40:60])
    draft = other.draft(TEXT[40:60], 16, 8)
    path, node = [], 0
    for token in TEXT[60:64]:
        children = [n for n in range(1, len(draft.tokens)) if draft.parents[n] == node and draft.tokens[n] == token]
        if not children:
            break
        node = children[0]
        path.append(token)
    assert path
