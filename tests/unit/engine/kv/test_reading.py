"""Steps of a model that attends to another one's cached tokens: what they see, and what they refuse."""

from __future__ import annotations

import numpy as np
import pytest

from edgeinfer.engine.kv.kvcache import KVCache
from edgeinfer.engine.kv.reading import step_of_cached
from edgeinfer.graph.rotary import RopeTable
from edgeinfer.graph.step import PAGE, Batch, Int32s
from edgeinfer.models.rope import rotations


def batch_of(sequences: list[int], positions: list[int], parents: Int32s | None = None) -> Batch:
    """Tokens at these positions, each after the cached ones, unless parents are given."""
    places = np.array(sequences, np.int32), np.array(positions, np.int32)
    nothing = np.full(len(positions), -1, np.int32)
    return Batch(nothing + 1, *places, nothing if parents is None else parents, np.zeros(0, np.int32))


def filled(cache: KVCache, n_tokens: int) -> int:
    """A sequence with so many cached tokens."""
    sequence, order = cache.create(), np.arange(n_tokens, dtype=np.int32)
    cache.place(batch_of([sequence] * n_tokens, order.tolist(), order - 1))
    cache.commit(sequence, order)
    return sequence


def test_a_token_sees_what_is_cached_up_to_its_position_and_nothing_changes() -> None:
    cache = KVCache(8, 4 * PAGE)
    long, short = filled(cache, PAGE + 5), filled(cache, 3)
    n_free, n_cached = cache.n_free_pages, [cache.n_cached(long), cache.n_cached(short)]
    step = step_of_cached(cache, batch_of([long, short, long], [PAGE + 4, 2, 1]))
    for token, (sequence, n_seen) in enumerate(((long, PAGE + 5), (short, 3), (long, 2))):
        positions = np.arange(n_seen)
        pages = cache.pages(sequence)
        assert step.context_slots(token).tolist() == (pages[positions // PAGE] * PAGE + positions % PAGE).tolist()
    assert [cache.n_cached(long), cache.n_cached(short)] == n_cached
    assert cache.n_free_pages == n_free


@pytest.mark.parametrize("position", [-1, 3, 200])
def test_positions_that_are_not_cached_are_refused(position: int) -> None:
    cache = KVCache(8, 4 * PAGE)
    sequence = filled(cache, 3)
    with pytest.raises(ValueError, match="has 3 cached tokens, none at"):
        step_of_cached(cache, batch_of([sequence], [position]))


def test_a_table_ahead_turns_tokens_as_later_ones() -> None:
    plain, ahead = (RopeTable(10000.0, 8, growth=0.5, growth_period=4, ahead=n) for n in (0, 1))
    for there, here in zip(rotations(plain, 12), rotations(ahead, 11), strict=True):
        assert np.array_equal(there[1:], here)
    assert np.array_equal(rotations(ahead, 11, first=7)[0], rotations(ahead, 11)[0][7:])
