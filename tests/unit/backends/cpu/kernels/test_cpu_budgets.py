"""Attention within budgets: the chunks that the definition chooses, and bits that no pass, tree or split changes."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import get_args

import numpy as np
import pytest

from edgeinfer.graph.budget import recent_and_best
from edgeinfer.graph.step import PAGE, Step
from edgeinfer.jit.library import KernelLibrary
from edgeinfer.settings import KVKind
from tests.unit.backends.cpu.attention_calls import LONGEST, Pages, Shape, both_ways, chain, tables_of, tree
from tests.unit.backends.cpu.kernel_calls import same_bits
from tests.unit.backends.cpu.kernels.test_cpu_attention import BRANCHING, PATHS

SHAPES = (
    Shape(4, 4, 16),
    Shape(9, 3, 64),
    Shape(8, 2, 24),
    Shape(7, 1, 96),
    Shape(16, 1, 80, values=64),
    Shape(9, 3, 64, has_sinks=True),
    Shape(8, 2, 24, cap=30.0, has_sinks=True),
    Shape(5, 5, 24, values=72),
)
CASES: tuple[tuple[Shape, KVKind], ...] = (
    *((shape, "f16") for shape in SHAPES),
    *product((SHAPES[1], SHAPES[4], SHAPES[6]), [kind for kind in get_args(KVKind) if kind != "f16"]),
)
"""All shapes for one kind of cache, and all kinds for some shapes."""


@pytest.fixture(params=CASES, ids=str)
def case(request: pytest.FixtureRequest) -> tuple[Shape, KVKind]:
    found: tuple[Shape, KVKind] = request.param
    return found


@pytest.fixture
def shape(case: tuple[Shape, KVKind]) -> Shape:
    return case[0]


@pytest.fixture
def kind(case: tuple[Shape, KVKind]) -> KVKind:
    return case[1]


def within(step: Step, *budgets: int) -> Step:
    """The step with budgets: one for all tokens, or one for each."""
    found = np.resize(np.array(budgets, np.int32), len(step.batch.tokens))
    return replace(step, batch=replace(step.batch, budgets=found))


def check_choice(pages: Pages, step: Step) -> None:
    """Assert that each token sees the chunks of the definition, ranked in order."""
    for token in range(len(step.batch.tokens)):
        unseen = pages.unseen(step, token)
        n_chunks = int(step.batch.positions[token]) // PAGE + 1
        seen = np.ones((pages.shape.kv_heads, n_chunks), bool) if unseen is None else ~unseen
        ranks = pages.ranks[token, :, :n_chunks]
        assert np.array_equal(ranks >= 0, seen)
        assert np.array_equal(ranks[seen], (np.cumsum(seen, axis=1) - 1)[seen])


@pytest.mark.parametrize(
    ("n_cached", "n_tokens", "budget"),
    [(500, 1, 256), (511, 1, 320), (448, 5, 192), (400, 40, 256), (449, 63, 300), (300, 1, 256), (63, 3, 192)],
)
def test_chains(library: KernelLibrary, shape: Shape, kind: KVKind, n_cached: int, n_tokens: int, budget: int) -> None:
    pages, step = Pages(library, shape, kind), within(chain(n_cached, n_tokens), budget)
    pages.blank_others(step)
    result = both_ways(pages, step)
    check_choice(pages, step)
    assert np.allclose(result, pages.expected(step), rtol=0, atol=1e-5)


def test_a_budget_for_everything_gives_the_bits_of_none(library: KernelLibrary, shape: Shape, kind: KVKind) -> None:
    pages = Pages(library, shape, kind)
    for step in (chain(500, 1), chain(470, 40), tree([450], [BRANCHING], tables_of(1))):
        plain = pages.run(step, split=len(step.slots) <= 8)
        for budget in (LONGEST, LONGEST - 1, 4096):
            for split in (True, False):
                assert same_bits(pages.run(within(step, budget), split), plain)


def test_a_token_without_a_budget_sees_everything_beside_one_with(
    library: KernelLibrary, shape: Shape, kind: KVKind
) -> None:
    pages, step = Pages(library, shape, kind), chain(470, 12)
    plain, mixed = pages.run(step, split=False), both_ways(pages, within(step, 0, 256, 192, 0, 4096))
    alone = both_ways(pages, within(step, 256)), both_ways(pages, within(step, 192))
    for token, which in enumerate([plain, alone[0], alone[1], plain, plain] * 2):
        assert same_bits(mixed[token], which[token])


def test_a_token_has_the_same_bits_alone_and_in_any_chunk(library: KernelLibrary, shape: Shape, kind: KVKind) -> None:
    pages = Pages(library, shape, kind)
    whole = pages.run(within(chain(440, 40), 256), split=False)
    for n_tokens in (1, 2, 3, 7, 8, 16):
        for start in range(0, 40 - n_tokens + 1, max(n_tokens, 5)):
            part = pages.run(within(chain(440 + start, n_tokens), 256), split=n_tokens <= 8)
            assert same_bits(part, whole[start : start + n_tokens])


@pytest.mark.parametrize("n_cached", [318, 380, 445])
def test_a_tree_node_has_the_bits_of_its_path(
    library: KernelLibrary, shape: Shape, kind: KVKind, n_cached: int
) -> None:
    step = within(tree([n_cached], [BRANCHING], tables_of(1)), 256)
    pages = Pages(library, shape, kind)
    pages.blank_others(step)
    result = both_ways(pages, step)
    check_choice(pages, step)
    assert np.allclose(result, pages.expected(step), rtol=0, atol=1e-5)
    for number, path in enumerate(PATHS):
        plain, moved = within(chain(n_cached, len(path)), 256), Pages(library, shape, kind)
        for old, new in zip(step.slots[path], plain.slots, strict=True):
            moved.copy_slot(int(old), int(new))
        assert same_bits(moved.run(plain, split=number % 2 == 0), result[path])


def test_sequences_of_one_pass_do_not_see_each_other(library: KernelLibrary, shape: Shape, kind: KVKind) -> None:
    tables = tables_of(2)
    step = within(tree([440, 3], [list(range(-1, 11)), BRANCHING], tables), 256)
    pages = Pages(library, shape, kind)
    pages.blank_others(step)
    result = both_ways(pages, step)
    assert np.allclose(result, pages.expected(step), rtol=0, atol=1e-5)
    assert same_bits(result[:12], pages.run(within(chain(440, 12, tables[:1]), 256), split=False))


@pytest.mark.parametrize("kind", get_args(KVKind))
def test_of_chunks_that_score_alike_the_later_ones_are_seen(library: KernelLibrary, kind: KVKind) -> None:
    pages, step = Pages(library, Shape(2, 1, 16), kind), within(chain(500, 1), 320)
    pages.fill(np.zeros_like(pages.keys), pages.values)
    pages.run(step, split=True)
    firsts, counts = recent_and_best(step.batch, step.starts)
    assert (firsts[0], counts[0]) == (6, 2)
    assert (pages.ranks[0, 0] >= 0).tolist() == [True, False, False, False, True, True, True, True]


def test_keys_beyond_float16_are_summarised_by_the_largest_number(library: KernelLibrary) -> None:
    pages, step = Pages(library, Shape(2, 1, 16), "q8"), within(chain(500, 2), 256)
    keys = np.array(pages.keys)
    keys[::7] *= 1e6
    pages.fill(keys, pages.values)
    assert np.isfinite(both_ways(pages, step)).all()
