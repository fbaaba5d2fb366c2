"""Which pages a step has to summarise: complete ones of sequences with budgets, once, and again after a change."""

from __future__ import annotations

import numpy as np

from edgeinfer.engine.kv.kvcache import KVCache
from edgeinfer.graph.step import PAGE, Batch, join


def batch(sequence: int, start: int, count: int = 1) -> Batch:
    order = np.arange(count, dtype=np.int32)
    return Batch(order, np.full(count, sequence, np.int32), order + np.int32(start), order - 1, order[:0])


def grown(cache: KVCache, n_tokens: int) -> int:
    sequence = cache.create()
    cache.extend(sequence, n_tokens)
    return sequence


def due(cache: KVCache, *batches: Batch) -> list[int] | None:
    """The new pages of a step, which then has run; its tokens are committed."""
    step = cache.place(join(batches)).step
    cache.summaries.note(step)
    first = 0
    for each in batches:
        cache.commit(int(each.sequences[0]), np.arange(first, first + len(each.tokens), dtype=np.int32))
        first += len(each.tokens)
    return None if step.new_pages is None else sorted(step.new_pages.tolist())


def test_complete_pages_but_the_first_are_summarised_once() -> None:
    cache = KVCache(20, 1000)
    sequence = grown(cache, 5 * PAGE + 60)
    pages = cache.pages(sequence).tolist()
    assert due(cache, batch(sequence, 5 * PAGE + 60)) is None
    assert due(cache, batch(sequence, 5 * PAGE + 61).within(192)) == sorted(pages[1:5])
    assert due(cache, batch(sequence, 5 * PAGE + 62).within(192)) == []
    assert due(cache, batch(sequence, 5 * PAGE + 63).within(192)) == []
    assert due(cache, batch(sequence, 6 * PAGE, 3).within(192)) == [pages[5]]


def test_a_step_that_did_not_run_leaves_its_pages_due() -> None:
    cache = KVCache(20, 1000)
    sequence = grown(cache, 3 * PAGE)
    for _ in range(2):
        step = cache.place(batch(sequence, 3 * PAGE).within(192)).step
        assert step.new_pages is not None
        assert len(step.new_pages) == 2


def test_pages_that_are_cut_or_taken_anew_are_due_again() -> None:
    cache = KVCache(8, 1000)
    sequence = grown(cache, 4 * PAGE)
    pages = cache.pages(sequence).tolist()
    assert due(cache, batch(sequence, 4 * PAGE).within(192)) == sorted(pages[1:4])
    cache.truncate(sequence, 2 * PAGE + 5)
    cache.extend(sequence, 2 * PAGE + 5)
    due(cache, batch(sequence, 2 * PAGE + 5, PAGE))
    assert due(cache, batch(sequence, 3 * PAGE + 5).within(192)) == [pages[2]]
    cache.free(sequence)
    other = grown(cache, 3 * PAGE)
    assert due(cache, batch(other, 3 * PAGE).within(192)) == sorted(cache.pages(other).tolist()[1:3])
    cache.summaries.forget(cache.pages(other).tolist()[:2])
    assert due(cache, batch(other, 3 * PAGE + 1).within(192)) == [cache.pages(other).tolist()[1]]


def test_shared_pages_are_summarised_for_both() -> None:
    cache = KVCache(20, 1000)
    sequence = grown(cache, 3 * PAGE + 5)
    twin, plain = cache.branch(sequence), grown(cache, 4 * PAGE)
    pages = cache.pages(sequence).tolist()
    together = batch(sequence, 3 * PAGE + 5).within(192), batch(twin, 3 * PAGE + 5).within(192), batch(plain, 4 * PAGE)
    assert due(cache, *together) == sorted(pages[1:3])


def test_a_branch_that_is_freed_leaves_the_summaries_of_what_it_shared() -> None:
    cache = KVCache(20, 1000)
    sequence = grown(cache, 3 * PAGE + 62)
    twin, pages = cache.branch(sequence), cache.pages(sequence).tolist()
    assert due(cache, batch(twin, 3 * PAGE + 62, 3).within(192)) == sorted(pages[1:3])
    own = cache.pages(twin).tolist()[3]
    assert due(cache, batch(twin, 4 * PAGE + 1).within(192)) == [own]  # complete, and the branch's alone
    cache.free(twin)
    twin = cache.branch(sequence)
    assert due(cache, batch(twin, 3 * PAGE + 62, 3).within(192)) == []
    assert due(cache, batch(twin, 4 * PAGE + 1).within(192)) == [cache.pages(twin).tolist()[3]]
