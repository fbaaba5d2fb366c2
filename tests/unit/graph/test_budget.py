"""Budgets of attention: which chunks are recent, how many more are seen, and which of them score best."""

from __future__ import annotations

import numpy as np
import pytest

from edgeinfer.graph.budget import chunk_scores, recent_and_best, summaries, unseen_chunks
from edgeinfer.graph.step import PAGE, Batch, join

FEWEST = 3
"""Chunks that every token sees at least, where there are so many: the first, its own and the one before."""


def batch(positions: list[int], budgets: list[int] | None, turns: list[int] | None = None) -> Batch:
    zeros = np.zeros(len(positions), np.int32)
    places = np.array(positions, np.int32)
    given = (None if each is None else np.array(each, np.int32) for each in (budgets, turns))
    return Batch(zeros, zeros, places, zeros - 1, zeros[:1], None, None, None, None, *given)


def seen(position: int, start: int, budget: int, turn: int = 0) -> tuple[int, int]:
    """The first recent chunk, and how many others are chosen."""
    first, best = recent_and_best(batch([position], [budget], [turn] if turn else None), np.array([start], np.int32))
    return int(first[0]), int(best[0])


@pytest.mark.parametrize("budget", [192, 256, 300, 1024, 1025, 4096, 8000])
def test_a_budget_is_filled_and_not_exceeded(budget: int) -> None:
    for position in range(0, 9000, 97):
        first, n_best = seen(position, position, budget)
        own, most = position // PAGE, -(-budget // PAGE)
        if not first:
            assert own < most
            continue
        assert 1 + (own + 1 - first) + n_best == max(FEWEST, most) <= own
        assert own - first == max(1, budget // (4 * PAGE))
        assert n_best < first - 1


def test_nodes_of_a_tree_see_what_they_would_see_alone() -> None:
    for start in range(300, 700, 7):
        for depth in range(64):
            assert seen(start + depth, start, 256) == seen(start + depth, start + depth, 256)


def test_what_a_pass_has_written_is_always_seen() -> None:
    first, n_best = seen(5000, 4800, 256)
    assert (first, n_best) == (4800 // PAGE, 0)


def test_the_recent_part_reaches_back_to_the_turn_where_half_of_the_budget_holds_it() -> None:
    position, budget = 5000, 1024
    own, quarter = position // PAGE, 4
    assert seen(position, position, budget)[0] == own - quarter
    assert seen(position, position, budget, (own - 6) * PAGE + 5) == (own - 6, 8)
    assert seen(position, position, budget, (own - 2) * PAGE)[0] == own - quarter  # never less than a quarter
    assert seen(position, position, budget, (own - 8) * PAGE)[0] == own - quarter  # no longer fits


def test_tokens_without_a_budget_see_everything_beside_others() -> None:
    starts = np.array([700, 700, 700], np.int32)
    first, n_best = recent_and_best(batch([700, 701, 702], [0, 256, 4096]), starts)
    assert first.tolist() == [0, 701 // PAGE - 1, 0]
    assert n_best.tolist() == [0, 1, 0]
    assert recent_and_best(batch([700], None), starts[:1])[0].tolist() == [0]


def test_a_score_is_what_a_query_finds_at_a_quarter_of_the_way_from_the_middle_to_the_edges() -> None:
    random = np.random.default_rng(0)
    query = random.standard_normal((2, 3, 16), np.float32)
    keys = random.standard_normal((5 * PAGE, 2, 16), np.float32).astype(np.float16).astype(np.float32)
    scores = chunk_scores(query, *summaries(keys.reshape(5, PAGE, 2, 16)))
    columns = keys.reshape(5, PAGE, 2, 16)
    for head in range(2):
        for chunk in range(5):
            low, high = columns[chunk, :, head].min(axis=0), columns[chunk, :, head].max(axis=0)
            middle, reach = (low + high) / 2, (high - low) / 2
            expected = max(float((each * middle + np.abs(each) * reach / 4).sum()) for each in query[head])
            assert scores[head, chunk] == pytest.approx(expected, abs=0.01)


def test_the_chunk_with_what_is_looked_for_is_seen() -> None:
    random = np.random.default_rng(1)
    keys = random.standard_normal((9 * PAGE + 7, 2, 16), np.float32)
    query = random.standard_normal((2, 3, 16), np.float32)
    keys[3 * PAGE + 5, 0], keys[6 * PAGE, 1] = 9 * query[0, 1], 9 * query[1, 2]
    unseen = unseen_chunks(query, keys, 8, 1)
    assert unseen.shape == (2, 10)
    assert np.flatnonzero(~unseen[0]).tolist() == [0, 3, 8, 9]
    assert np.flatnonzero(~unseen[1]).tolist() == [0, 6, 8, 9]


def test_joined_batches_keep_budgets() -> None:
    joined = join([batch([5, 6], [256, 0], [3, 3]), batch([9], None), batch([7], [192])])
    assert joined.budgets is not None
    assert joined.turn_starts is not None
    assert joined.budgets.tolist() == [256, 0, 0, 192]
    assert joined.turn_starts.tolist() == [3, 3, 0, 0]
    assert join([batch([5], None), batch([6], None)]).budgets is None


def test_tokens_of_a_prompt_stay_without() -> None:
    plain = batch([505, 506, 507], None)
    assert plain.within(0) is plain
    assert plain.within(256, 3) is plain
    budgets = plain.within(256, 2, 4).budgets
    assert budgets is not None
    assert budgets.tolist() == [0, 0, 256]


@pytest.mark.parametrize("budget", [192, 250, 256, 257, 1024])
def test_tokens_that_a_budget_covers_stay_without(budget: int) -> None:
    first = -(-budget // PAGE) * PAGE  # the first position that does not see everything
    assert seen(first - 1, first - 1, budget) == (0, 0)
    assert seen(first, first, budget) != (0, 0)
    covered = batch([first - 2, first - 1], None)
    assert covered.within(budget) is covered
    assert covered.within(budget, 0, 3) is covered
    budgets = batch([first - 1, first, first + 1], None).within(budget).budgets
    assert budgets is not None
    assert budgets.tolist() == [0, budget, budget]
