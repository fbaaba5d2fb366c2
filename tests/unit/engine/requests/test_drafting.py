"""Draft trees: walks follow what is chosen, and whatever a drafter proposes becomes a tree that can be checked."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeinfer.engine.requests.drafting import ROOT, Draft, root_only, trimmed, walk


def draft(*nodes: tuple[int, int]) -> Draft:
    """A draft of (token, parent) pairs."""
    tokens, parents = zip(*nodes, strict=True)
    return Draft(np.array(tokens, np.int32), np.array(parents, np.int32))


TREE = draft((7, ROOT), (1, 0), (2, 0), (3, 1), (4, 1), (3, 2), (9, 4))


def test_depths_count_from_the_root() -> None:
    assert TREE.depths.tolist() == [0, 1, 1, 2, 2, 2, 3]
    assert root_only(3).depths.tolist() == [0]


@pytest.mark.parametrize(
    ("choices", "path"),
    [
        ([5], [0]),
        ([1, 8], [0, 1]),
        ([1, 4, 9, 6], [0, 1, 4, 6]),
        ([2, 3, 3], [0, 2, 5]),
        ([1, 0], [0, 1]),
    ],
)
def test_a_walk_follows_the_choices_for_as_long_as_they_were_drafted(choices: list[int], path: list[int]) -> None:
    asked = []

    def choose(node: int, before: list[int]) -> int:
        assert before == choices[: len(before)]
        asked.append(node)
        return choices[len(before)]

    walked = walk(TREE, choose, frozenset())
    assert (walked.tokens, walked.path.tolist(), asked) == (choices, path, path)


def test_a_walk_ends_at_an_end_that_was_drafted() -> None:
    walked = walk(TREE, lambda _node, _before: 1, {1})
    assert (walked.tokens, walked.path.tolist()) == ([1], [0])


def test_what_cannot_be_checked_is_left_out() -> None:
    wild = draft((99, 5), (1, 0), (1, 0), (500, 0), (3, 2), (4, 3), (5, 5), (6, -7), (2, 12), (8, 4), (9, 9))
    kept = trimmed(wild, 7, 100, 64, 64)
    assert kept.tokens.tolist() == [7, 1, 3, 8, 9]  # the second 1 is the first; what hung on it stays
    assert kept.parents.tolist() == [ROOT, 0, 1, 2, 3]
    assert trimmed(TREE, 7, 100, 3, 64).tokens.tolist() == [7, 1, 2]
    assert trimmed(TREE, 7, 100, 64, 1).tokens.tolist() == [7, 1, 2]
    assert trimmed(TREE, 7, 100, 64, 0).tokens.tolist() == [7]
    assert trimmed(draft((7, 0)), 7, 100, 64, 64).parents.tolist() == [ROOT]


nodes = st.lists(st.tuples(st.integers(-3, 12), st.integers(-3, 20)), min_size=1, max_size=30)


@given(nodes, st.integers(1, 12), st.integers(0, 6))
def test_whatever_is_proposed_becomes_a_tree(proposed: list[tuple[int, int]], most: int, deepest: int) -> None:
    kept = trimmed(draft(*proposed), 5, 10, most, deepest)
    assert kept.tokens[0] == 5
    assert kept.parents[0] == ROOT
    assert 1 <= len(kept.tokens) <= most
    assert kept.depths.max() <= deepest
    assert all(0 <= parent < node for node, parent in enumerate(kept.parents.tolist()) if node)
    assert all(0 <= token < 10 for token in kept.tokens.tolist())
    assert len({*zip(kept.parents.tolist(), kept.tokens.tolist(), strict=True)}) == len(kept.tokens)
    again = trimmed(kept, 5, 10, most, deepest)
    assert again.tokens.tolist() == kept.tokens.tolist()
