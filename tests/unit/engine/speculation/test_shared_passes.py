"""Trees of several texts in one pass: one order over all their candidates, ended where all together gain most."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from edgeinfer.engine.requests.drafting import Draft, DraftRequest, DraftRoom
from edgeinfer.engine.speculation.costs import Costs
from edgeinfer.engine.speculation.drafts import ModelDrafts
from edgeinfer.engine.speculation.records import MOST
from edgeinfer.engine.speculation.session_drafts import SessionDrafts
from tests.unit.engine.speculation.drafting import FLAT, follow, model_drafts, repeating

TEXTS = [repeating(300, seed, period) for seed, period in ((0, 23), (1, 9), (2, 40))]
RANDOM = np.random.default_rng(5).integers(1, 300, 200).tolist()


def begun(drafts: ModelDrafts, texts: Sequence[Sequence[int]]) -> list[SessionDrafts]:
    """Sessions that go on with these texts."""
    sessions = [drafts.session() for _ in texts]
    for session, text in zip(sessions, texts, strict=True):
        session.begin(text)
    return sessions


def together(
    sessions: Sequence[SessionDrafts], texts: Sequence[Sequence[int]], room: DraftRoom, most: int = MOST
) -> list[Draft]:
    requests = [DraftRequest(session, text, most, 16, 2) for session, text in zip(sessions, texts, strict=True)]
    return requests[0].speculator.drafter.draft(requests, room)


def seconds(costs: Mapping[int, float], n_tokens: Any) -> Any:
    """What passes take: the curve through these points, which goes on beyond the last one."""
    places = sorted({1, *costs})
    values = [costs.get(place, 1.0) for place in places]
    slope = (values[-1] - values[-2]) / (places[-1] - places[-2])
    return np.interp(n_tokens, places, values) + slope * np.maximum(0, n_tokens - np.int64(places[-1]))


def taught(costs: Mapping[int, float], fixed: int | None = None) -> ModelDrafts:
    """Drafts that know how well drafts of such texts do."""
    teaching = model_drafts()
    for text in TEXTS:
        follow(teaching.session(), text, 100)
    drafts = model_drafts(costs, fixed)
    for name, array in drafts.acceptance[False].arrays().items():
        array[...] = teaching.acceptance[False].arrays()[name]
    return drafts


@pytest.mark.parametrize(("beside", "n_prompt"), [(0, 0), (7, 0), (0, 5), (0, 200)])
@pytest.mark.parametrize("costs", [{2: 1.1, 8: 1.4, 64: 6.0}, {2: 1.02, 64: 1.3}, {4: 1.0, 8: 2.0, 64: 16.0}])
def test_the_likeliest_tokens_of_all_texts_are_taken(costs: Mapping[int, float], beside: int, n_prompt: int) -> None:
    """Against a search: every pass size, filled with the likeliest tokens of the largest trees.

    Beside a prompt, drafts cost what they add to a pass that reads it, and all else what it costs without it.
    """
    texts = [text[:250] for text in TEXTS]
    largest = taught(costs, fixed=MOST)
    grown = begun(largest, texts)
    reaches = []
    for session, text in zip(grown, texts, strict=True):
        session.draft(text, MOST, 16)
        reaches.append(session.reaches[1 : int(session._fields["n_nodes"])].tolist())
    order = sorted(itertools.chain(*reaches), reverse=True)[: MOST - beside - 3]
    expected = np.cumsum([3.0 + 0.5 * beside, *order])
    sizes = 3 + beside + n_prompt + np.arange(len(expected))
    rates = expected / (seconds(costs, sizes) - seconds(costs, 3 + n_prompt) + seconds(costs, 3))
    drafts = taught(costs)
    sessions = begun(drafts, texts)
    found = together(sessions, texts, DraftRoom(MOST, 6, beside, 0.5 * beside, n_prompt))
    n_drafted = sum(len(draft.tokens) for draft in found) - 3
    assert rates[n_drafted] == pytest.approx(rates.max(), rel=1e-5)
    taken = sorted(itertools.chain(*(s.reaches[1 : len(d.tokens)] for s, d in zip(sessions, found, strict=True))))
    assert taken[::-1] == pytest.approx(order[:n_drafted], rel=1e-5)
    assert sum(session.expected for session in sessions) == pytest.approx(3 + sum(order[:n_drafted]), rel=1e-5)


def test_no_drafts_at_all_are_a_candidate() -> None:
    drafts = taught({2: 2.0, 64: 64.0})
    texts = [text[:250] for text in TEXTS]
    found = together(begun(drafts, texts), texts, DraftRoom(MOST, 6))
    assert [len(draft.tokens) for draft in found] == [1, 1, 1]


def test_a_text_that_is_easy_to_foresee_gets_the_room_of_one_that_is_not() -> None:
    drafts = taught(FLAT)
    texts = [TEXTS[0][:250], RANDOM]
    easy, hard = together(begun(drafts, texts), texts, DraftRoom(12, 4))
    assert len(easy.tokens) > len(hard.tokens)
    assert len(easy.tokens) + len(hard.tokens) <= 12


@pytest.mark.parametrize("n_pages", range(8))
def test_no_more_texts_are_drafted_than_memory_has_pages_for(n_pages: int) -> None:
    """Each draft takes two."""
    texts = [text[:250] for text in TEXTS]
    found = together(begun(taught(FLAT), texts), texts, DraftRoom(MOST, n_pages))
    assert sum(len(draft.tokens) > 1 for draft in found) == min(3, n_pages // 2)


def test_each_text_keeps_its_own_limit() -> None:
    texts = [text[:250] for text in TEXTS]
    assert all(len(d.tokens) <= 4 for d in together(begun(taught(FLAT), texts), texts, DraftRoom(MOST, 6), most=4))
    fixed = together(begun(taught({2: 9.0, 64: 99.0}, fixed=3), texts), texts, DraftRoom(MOST, 6))
    assert [len(draft.tokens) for draft in fixed] == [3, 3, 3]  # whatever it costs


def test_chances_that_are_no_numbers_draft_nothing() -> None:
    drafts = taught(FLAT)
    for name in ("counts", "joint", "weights", "calibration"):
        array = drafts.acceptance[False].arrays()[name]
        for field in array.dtype.names or ():
            if array.dtype[field].kind == "f":
                array[field] = np.nan
        if array.dtype.names is None:
            array[...] = np.nan
    texts = [text[:250] for text in TEXTS]
    found = together(begun(drafts, texts), texts, DraftRoom(MOST, 6))
    assert [len(draft.tokens) for draft in found] == [1, 1, 1]


def test_texts_that_cannot_be_foreseen_are_soon_left_alone() -> None:
    """Wrong drafts settle to none, in passes that are not free."""
    drafts, draw = model_drafts({2: 1.15, 64: 10.0}), np.random.default_rng(1)
    texts = [draw.integers(1, 300, 400).tolist() for _ in range(2)]
    found = [follow(drafts.session(), text, 50) for text in texts]
    assert sum(len(draft.tokens) > 1 for draft in found[1][-100:]) < 20


def test_what_a_shared_pass_costs_is_learned() -> None:
    """Passes of drafted tokens that take longer than measured become dearer; some are made without drafts to see."""
    costs = Costs({3: 1.0, 64: 1.02})
    drafts = ModelDrafts(model_drafts().library, 300, costs)
    for name, array in drafts.acceptance[False].arrays().items():
        array[...] = taught(FLAT).acceptance[False].arrays()[name]
    texts = [text[:250] for text in TEXTS]
    sessions, sizes = begun(drafts, texts), list[int]()
    for _ in range(1200):
        n_tokens = sum(len(draft.tokens) for draft in together(sessions, texts, DraftRoom(MOST, 6)))
        drafts.observe(n_tokens, 0.001 if n_tokens == 3 else 0.0016)
        sizes.append(n_tokens)
    assert 3 < sizes.count(3) < 40
    assert max(sizes[:10]) > 12
    assert costs.curve[max(sizes)] / costs.curve[3] > 1.3
    together(sessions, texts, DraftRoom(MOST, 6, 5, 5.0))  # beside others that are not drafted for
    before = costs.curve.copy()
    drafts.observe(20, 1.0)
    assert (costs.curve == before).all()
    together(sessions, texts, DraftRoom(MOST, 6, n_prompt=100))
    before = costs.curve.copy()
    drafts.observe(20, 1.0)
    assert (costs.curve == before).all()
