"""Predicted times of passes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeinfer.scheduling.serving.pace import MOST_STRANGE, Pace


def test_nothing_is_known_at_first() -> None:
    assert Pace().seconds(3) is None
    assert Pace().most_tokens(1.0, 100) == 100


def test_times_between_what_was_seen_and_beyond() -> None:
    pace = Pace()
    pace.observe(1, 2.0)
    pace.observe(8, 5.5)
    assert [pace.seconds(n) for n in (1, 2, 8, 16)] == [2.0, 2.5, 5.5, 11.0]
    assert pace.most_tokens(2.5, 100) == 2
    assert pace.most_tokens(1.9, 100) == 0


def test_new_times_count_most_and_strange_ones_little() -> None:
    pace = Pace()
    pace.observe(1, 1.0)
    for _ in range(60):
        pace.observe(1, 2.0)
    assert pace.seconds(1) == pytest.approx(2.0, rel=0.01)
    pace.observe(1, 1000.0)
    assert pace.seconds(1) < 2.0 + 2.0 * MOST_STRANGE / 8


@given(st.lists(st.tuples(st.integers(1, 256), st.floats(1e-4, 1.0)), min_size=1), st.integers(1, 300))
def test_no_pass_takes_longer_than_a_larger_one(seen: list[tuple[int, float]], n_tokens: int) -> None:
    pace = Pace()
    for size, seconds in seen:
        pace.observe(size, seconds)
    assert pace.seconds(n_tokens) <= pace.seconds(n_tokens + 1) * (1 + 1e-9)
    limit = pace.seconds(n_tokens)
    assert pace.most_tokens(limit * (1 + 1e-9), 400) >= n_tokens
