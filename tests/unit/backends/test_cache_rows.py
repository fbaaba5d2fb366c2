"""Rows of a growing cache: what tokens see is what the reference says, through copies, branches and compaction."""

from __future__ import annotations

import numpy as np
import pytest

from edgeinfer.backends.cache_rows import NO_ROW, SPARE_ROWS, CacheRows
from edgeinfer.engine.kv.kvcache import Copies, KVCache
from edgeinfer.graph.step import PAGE, Batch, Step

N_PAGES = 12


def apply(rows: CacheRows, copies: Copies) -> None:
    rows.copy(copies.sources, copies.targets)


def tree(sequence: int, n_cached: int, parents: np.ndarray) -> Batch:
    """A draft tree after the cached tokens."""
    depths: list[int] = []
    for parent in parents.tolist():
        depths.append(0 if parent < 0 else depths[parent] + 1)
    n_tokens = len(parents)
    order = np.arange(n_tokens, dtype=np.int32)
    positions = np.array(depths, np.int32) + np.int32(n_cached)
    return Batch(order, np.full(n_tokens, sequence, np.int32), positions, parents, order)


def expected(rows: CacheRows, step: Step, window: int | None) -> np.ndarray:
    """The mask by definition: the slots of each token's context, the last `window` of them."""
    n_tokens = len(step.batch.tokens)
    seen = np.zeros((n_tokens, rows.n_rows + n_tokens), np.bool_)
    at = {int(slot): rows.n_rows + token for token, slot in enumerate(step.slots)}
    for token in range(n_tokens):
        slots = step.context_slots(token)
        n_own = 1 + _depth(step, token)
        for place, slot in enumerate(slots):
            if window is not None and place < len(slots) - window:
                continue
            own = place >= len(slots) - n_own
            seen[token, at[int(slot)] if own else rows.rows(np.array([slot]))[0]] = True
    return seen


def _depth(step: Step, token: int) -> int:
    parent = int(step.batch.parents[token])
    return 0 if parent < 0 else 1 + _depth(step, parent)


@pytest.mark.parametrize("window", [None, 1, 7, 100])
def test_tokens_see_what_the_reference_attends_to(window: int | None) -> None:
    """Random passes over branching sequences, drafts of which a path is kept, with compaction in between."""
    rng = np.random.default_rng(5)
    cache, rows = KVCache(N_PAGES, 256), CacheRows(N_PAGES * PAGE)
    sequences = [cache.create()]
    for turn in range(60):
        sequence = sequences[int(rng.integers(len(sequences)))]
        n_cached, size = cache.n_cached(sequence), int(rng.integers(1, 9))
        if n_cached + size > 120:
            cache.truncate(sequence, 30)
            n_cached = 30
        parents = np.array([-1, *(int(rng.integers(0, token)) for token in range(1, size))], np.int32)
        batch = tree(sequence, n_cached, parents)
        placement = cache.place(batch)
        apply(rows, placement.copies)
        assert np.array_equal(rows.visible(placement.step, window), expected(rows, placement.step, window))
        rows.append(placement.step.slots)
        path = [size - 1]
        while parents[path[0]] >= 0:
            path.insert(0, int(parents[path[0]]))
        apply(rows, cache.commit(sequence, np.array(path, np.int32)))
        if turn == 20:
            sequences.append(cache.branch(sequences[0]))
        if rows.is_crowded:
            before = rows.rows(np.arange(N_PAGES * PAGE))
            kept = rows.compact()
            after = rows.rows(np.arange(N_PAGES * PAGE))
            assert np.array_equal(before == NO_ROW, after == NO_ROW)
            assert np.array_equal(kept[after[after >= 0]], before[before >= 0])
            assert rows.n_rows == len(kept)


def test_rows_that_no_slot_names_are_forgotten() -> None:
    rows = CacheRows(256)
    slots = np.arange(100)
    rows.append(slots)
    assert not rows.is_crowded
    rows.append(slots)
    assert rows.is_crowded
    assert rows.compact().tolist() == list(range(100, 200))
    assert rows.rows(slots).tolist() == list(range(100))
    assert not rows.is_crowded


def test_only_chosen_slots_are_kept() -> None:
    rows = CacheRows(64)
    rows.append(np.arange(10))
    assert rows.compact([2, 7, 50]).tolist() == [2, 7]
    assert rows.rows(np.array([2, 7, 50, 3])).tolist() == [0, 1, NO_ROW, NO_ROW]


def test_copied_slots_share_a_row_until_one_is_written() -> None:
    rows = CacheRows(256)
    rows.append(np.arange(4))
    rows.copy(np.array([1, 2], np.int32), np.array([101, 102], np.int32))
    rows.append(np.array([1]))
    assert rows.rows(np.array([1, 101, 102])).tolist() == [4, 1, 2]
    assert rows.n_rows == 5 < SPARE_ROWS
