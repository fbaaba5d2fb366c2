"""What blocks of prompts choose, and where blocks lie in batches."""

from __future__ import annotations

import numpy as np
import pytest

from edgeinfer.graph.block_choice import LEAST_BUDGET, chosen_chunks, sampled_tokens
from edgeinfer.graph.step import PAGE, Batch, join, whole_blocks


def scores(best: list[int], n_chunks: int) -> np.ndarray:
    """Scores of one query for each of some chunks, which it attends to almost alone; one position of it is enough."""
    found = np.zeros((len(best), n_chunks * PAGE), np.float32)
    for row, chunk in enumerate(best):
        found[row, chunk * PAGE + 7] = 20.0
    return found


def test_a_block_sees_the_first_chunk_the_last_two_and_the_most_attended() -> None:
    chosen = chosen_chunks(scores([3, 9, 9, 5], 12), 6 * PAGE)
    assert np.flatnonzero(chosen).tolist() == [0, 3, 5, 9, 11, 12]


def test_every_query_counts_alike_however_large_its_scores() -> None:
    given = scores([3, 9, 5], 12)
    given[1] *= 50
    chosen = np.flatnonzero(chosen_chunks(given, 6 * PAGE)).tolist()
    assert chosen == [0, 3, 5, 9, 11, 12]


@pytest.mark.parametrize("n_chunks", [0, 1, 3])
def test_a_budget_for_everything_chooses_everything(n_chunks: int) -> None:
    assert chosen_chunks(scores([0] * bool(n_chunks), n_chunks), 4 * PAGE).all()


@pytest.mark.parametrize("budget", [LEAST_BUDGET, 5 * PAGE, 1000, 2048])
def test_a_block_sees_as_many_chunks_as_the_budget_holds(budget: int) -> None:
    drawn = np.random.default_rng(3).standard_normal((4, 100 * PAGE)).astype(np.float32)
    chosen = chosen_chunks(drawn, budget)
    assert chosen.sum() == -(-budget // PAGE)
    assert chosen[0]
    assert chosen[-2:].all()


def test_queries_that_choose_are_spread_over_a_block() -> None:
    assert sampled_tokens().tolist() == [15, 31, 47, 63]


def test_blocks_are_whole_and_begin_at_pages() -> None:
    assert whole_blocks(0, 63) is None
    assert whole_blocks(1, 126) is None
    found = whole_blocks(1, 127)
    assert found is not None
    assert found.tolist() == [63]
    found = whole_blocks(128, 200)
    assert found is not None
    assert found.tolist() == [0, 64, 128]


def test_blocks_of_joined_batches_move_with_their_tokens() -> None:
    def batch(sequence: int, first: int, count: int) -> Batch:
        order = np.arange(count, dtype=np.int32)
        sequences, blocks = np.full(count, sequence, np.int32), whole_blocks(first, count)
        return Batch(order, sequences, order + first, order - 1, order[:0], blocks=blocks)

    joined = join([batch(0, 5, 1), batch(1, 60, 70), batch(2, 0, 128)])
    assert joined.blocks is not None
    assert joined.blocks.tolist() == [1 + 4, 71, 71 + PAGE]
    assert joined.positions[joined.blocks].tolist() == [PAGE, 0, PAGE]
    assert join([batch(0, 5, 1), batch(1, 60, 20)]).blocks is None
