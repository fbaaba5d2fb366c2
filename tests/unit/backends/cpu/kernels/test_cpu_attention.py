"""Attention against plain softmax, and bit-equal whatever the pass, the tree, the split and the worker pool."""

from __future__ import annotations

from typing import get_args

import numpy as np
import pytest

from edgeinfer.backends.cpu.memory.step import Lists, attention_tiles, direct_tokens
from edgeinfer.graph.step import PAGE, Step, whole_blocks
from edgeinfer.jit.library import KernelLibrary
from edgeinfer.settings import KVKind
from tests.unit.backends.cpu.attention_calls import Pages, Shape, both_ways, chain, tables_of, tree
from tests.unit.backends.cpu.kernel_calls import RUNNABLE, SINGLE_KINDS, same_bits

SHAPES = (
    Shape(4, 4, 16),
    Shape(9, 3, 64),
    Shape(8, 2, 24),
    Shape(7, 1, 96),
    Shape(4, 1, 128, window=100),
    Shape(3, 3, 256, cap=2.0),
    Shape(14, 2, 24, window=7),
    Shape(4, 2, 16, window=64, cap=30.0),
    Shape(40, 2, 16, window=1),
    Shape(9, 3, 64, has_sinks=True),
    Shape(8, 2, 24, window=100, cap=30.0, has_sinks=True),
    Shape(6, 2, 96, values=64),
    Shape(5, 5, 24, window=90, values=72),
    Shape(4, 2, 16, window=64, chunked=True),
    Shape(6, 3, 24, window=9, cap=30.0, has_sinks=True, chunked=True),
)
BRANCHING = [-1, 0, 1, 0, 3, 2, -1, 6, 7, 7, 4, 5, 11, 12]
PATHS = [0, 1, 2, 5, 11, 12, 13], [0, 3, 4, 10], [6, 7, 8], [6, 7, 9]
"""Those of the leaves, in which every node is."""


@pytest.fixture(params=SHAPES, ids=str)
def shape(request: pytest.FixtureRequest) -> Shape:
    found: Shape = request.param
    return found


@pytest.fixture(params=get_args(KVKind))
def kind(request: pytest.FixtureRequest) -> KVKind:
    found: KVKind = request.param
    return found


@pytest.mark.parametrize(
    ("n_cached", "n_tokens"), [(0, 1), (0, 20), (63, 1), (64, 1), (50, 37), (127, 2), (128, 5), (200, 1), (190, 64)]
)
def test_chains(library: KernelLibrary, shape: Shape, kind: KVKind, n_cached: int, n_tokens: int) -> None:
    pages, step = Pages(library, shape, kind), chain(n_cached, n_tokens)
    pages.blank_others(step)
    assert np.allclose(both_ways(pages, step), pages.expected(step), rtol=0, atol=1e-5)


def test_a_token_has_the_same_bits_alone_and_in_any_chunk(library: KernelLibrary, shape: Shape, kind: KVKind) -> None:
    pages = Pages(library, shape, kind)
    whole = pages.run(chain(100, 40), split=False)
    for n_tokens in (1, 2, 3, 7, 8, 16):
        for start in range(0, 40 - n_tokens + 1, max(n_tokens, 5)):
            part = pages.run(chain(100 + start, n_tokens), split=n_tokens <= 8)
            assert same_bits(part, whole[start : start + n_tokens])


@pytest.mark.parametrize("n_cached", [0, 5, 60, 62, 64, 130])
def test_a_tree_node_has_the_bits_of_its_path(
    library: KernelLibrary, shape: Shape, kind: KVKind, n_cached: int
) -> None:
    step = tree([n_cached], [BRANCHING], tables_of(1))
    assert not all(direct_tokens(Lists(step)))
    pages = Pages(library, shape, kind)
    pages.blank_others(step)
    result = both_ways(pages, step)
    assert np.allclose(result, pages.expected(step), rtol=0, atol=1e-5)
    for number, path in enumerate(PATHS):
        plain, moved = chain(n_cached, len(path)), Pages(library, shape, kind)
        for old, new in zip(step.slots[path], plain.slots, strict=True):
            moved.copy_slot(int(old), int(new))  # ancestors come first, and none lies where another one goes
        assert same_bits(moved.run(plain, split=number % 2 == 0), result[path])


def test_sequences_of_one_pass_do_not_see_each_other(library: KernelLibrary, shape: Shape, kind: KVKind) -> None:
    tables = tables_of(2)
    step = tree([70, 3], [list(range(-1, 11)), BRANCHING], tables)
    pages = Pages(library, shape, kind)
    pages.blank_others(step)
    result = both_ways(pages, step)
    assert np.allclose(result, pages.expected(step), rtol=0, atol=1e-5)
    alone = pages.run(chain(70, 12, tables[:1]), split=False)
    assert same_bits(result[:12], alone)


def test_large_and_equal_scores(library: KernelLibrary, kind: KVKind) -> None:
    pages, step = Pages(library, Shape(2, 1, 16), kind), chain(90, 3)
    keys, values = np.zeros_like(pages.keys), pages.values
    pages.fill(keys, values)  # all scores equal: plain means
    assert np.allclose(both_ways(pages, step), pages.expected(step), rtol=0, atol=1e-6)
    keys[13::64, :, 0] = 6e4  # one position of each page outweighs all others by far
    pages.fill(keys, values)
    assert np.allclose(both_ways(pages, step), pages.expected(step), rtol=0, atol=1e-5)
    keys[..., 0] = -6e4  # and very negative scores
    pages.fill(keys, values)
    assert np.allclose(both_ways(pages, step), pages.expected(step), rtol=0, atol=1e-5)


@pytest.mark.parametrize("kind", SINGLE_KINDS)
def test_any_instruction_set_gives_the_same_bits(library: KernelLibrary, shape: Shape, kind: KVKind) -> None:
    pages = Pages(library, shape, kind)
    for step in (chain(90, 5), chain(60, 30)):
        results = [pages.run(step, len(step.slots) <= 8, isa=isa) for isa in RUNNABLE]
        assert len(results) > 1
        assert all(same_bits(result, results[0]) for result in results)


def test_tiles_hold_runs_of_one_sequence() -> None:
    step = tree([PAGE - 2, 0], [list(range(-1, 9)), BRANCHING], tables_of(2))
    direct = direct_tokens(Lists(step))
    for forks in (True, False):
        tiles, paths = attention_tiles(step, 4, forks=forks)
        assert tiles[:3, :2].tolist() == [[0, 4], [4, 4], [8, 2]]
        assert tiles[:, 1].sum() == len(step.slots)
        for first, n_tokens, row, start, path, lowest, highest, path_ints, spare, gathers, block in tiles.tolist():
            assert {row} == set(step.rows[first : first + n_tokens].tolist())
            assert block == -1
            assert start == step.starts[first]
            positions = step.batch.positions[first : first + n_tokens].tolist()
            assert (lowest, highest) == (min(positions), max(positions))
            if path < 0:
                assert all(direct[first : first + n_tokens])
                continue
            assert gathers == (not forks)
            assert forks or n_tokens == 1
            for place in range(n_tokens):
                expected = [first + place]
                while step.batch.parents[expected[-1]] >= 0:
                    expected.append(int(step.batch.parents[expected[-1]]))
                found = paths[path + place * path_ints :][: len(expected)].tolist()
                assert found == step.slots[expected[::-1]].tolist()
                in_table = {int(page) for page in step.tables[row]} | ({spare} if forks else set())
                assert gathers or {slot // PAGE for slot in found} <= in_table


def test_a_tree_with_siblings_in_two_spare_pages_is_gathered() -> None:
    step = tree([5], [[-1] * 3 + [0] * 3], tables_of(1))
    slots = step.slots.copy()
    slots[-1] += 3 * PAGE  # another page than its siblings'
    moved = Step(step.batch, step.rows, slots, step.starts, step.tables)
    tiles, _ = attention_tiles(moved, 8)
    assert tiles[:, 1].tolist() == [1] * 6
    assert tiles[:, -2].all()


def test_tiles_lie_in_a_block_or_outside_of_all() -> None:
    step = chain(PAGE - 10, 10 + 2 * PAGE + 5)
    blocks = whole_blocks(PAGE - 10, len(step.slots))
    assert blocks is not None
    assert blocks.tolist() == [10, 10 + PAGE]
    tiles, _ = attention_tiles(step, 12, blocks=blocks)
    assert tiles[:, :2].tolist() == [
        *([0, 10], [10, 11], [21, 11], [32, 11], [43, 11], [54, 11], [65, 9]),
        *([74, 11], [85, 11], [96, 11], [107, 11], [118, 11], [129, 9], [138, 5]),
    ]
    assert tiles[:, -1].tolist() == [-1, *[0] * 6, *[1] * 6, -1]
