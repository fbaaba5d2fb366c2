"""Blocks of prompts attend to the chunks that the meaning in NumPy chooses, with the same bits in every pass."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import numpy as np
import pytest
from numpy.typing import NDArray

from edgeinfer.graph.block_choice import SAMPLED, chosen_chunks, sampled_tokens
from edgeinfer.graph.step import PAGE, Step
from edgeinfer.jit.library import KernelLibrary
from edgeinfer.settings import KVKind
from tests.unit.backends.cpu.attention_calls import Pages, Shape, chain, tables_of, tree
from tests.unit.backends.cpu.kernel_calls import RUNNABLE, SINGLE_KINDS, same_bits

SHAPES = (
    Shape(9, 3, 64),
    Shape(8, 2, 24),
    Shape(3, 3, 96, cap=2.0),
    Shape(20, 1, 16),
    Shape(8, 2, 24, has_sinks=True, values=40),
)
BUDGETS = (4 * PAGE, 5 * PAGE + 1)


@pytest.fixture(params=SHAPES, ids=str)
def shape(request: pytest.FixtureRequest) -> Shape:
    found: Shape = request.param
    return found


def block(number: int) -> Step:
    """A pass over the tokens of one chunk."""
    step = chain(number * PAGE, PAGE)
    return replace(step, batch=replace(step.batch, blocks=np.zeros(1, np.int32)))


def unseen_chunks(pages: Pages, step: Step, budget: int) -> NDArray[np.bool_]:
    """Those that a block does not see: bool[G, chunks]."""
    queries, keys, _ = pages.compared(step)
    before, shape = step.context_slots(0)[:-1], pages.shape
    grouped = queries[sampled_tokens()].reshape(-1, shape.kv_heads, shape.repeats, shape.width)
    scores = np.einsum("ngrk,sgk->gnrs", grouped, keys[before].astype(np.float32))
    scores = shape.cap * np.tanh(scores / shape.cap) if shape.cap else scores
    flat = scores.reshape(shape.kv_heads, SAMPLED * shape.repeats, len(before)).astype(np.float32)
    return ~np.stack([chosen_chunks(of_head, budget) for of_head in flat])


@pytest.mark.parametrize("kind", get_args(KVKind))
@pytest.mark.parametrize("budget", BUDGETS)
def test_a_block_sees_the_chunks_that_it_chooses(
    library: KernelLibrary, shape: Shape, kind: KVKind, budget: int
) -> None:
    for number in (0, 3, 5, 7):
        pages, step = Pages(library, shape, kind), block(number)
        pages.blank_others(step)
        unseen = unseen_chunks(pages, step, budget)
        assert unseen.sum(axis=1).tolist() == [max(0, number + 1 - -(-budget // PAGE))] * shape.kv_heads
        result = pages.run(step, split=False, budget=budget)
        for head, listed in enumerate(pages.chosen.tolist()):
            assert listed[1 : 1 + listed[0]] == np.flatnonzero(~unseen[head]).tolist()
        assert np.allclose(result, pages.expected(step, unseen), rtol=0, atol=1e-5)
        for workers in (2, 5):
            assert same_bits(pages.run(step, split=False, workers=workers, budget=budget), result)


def test_a_budget_for_everything_changes_no_bit(library: KernelLibrary, shape: Shape) -> None:
    pages = Pages(library, shape)
    for number in (3, 7):
        step = block(number)
        plain = pages.run(step, split=False)
        assert same_bits(pages.run(step, split=False, budget=(number + 1) * PAGE), plain)
        assert same_bits(pages.run(step, split=False, budget=4 * PAGE), plain) == (number < 4)


def test_tokens_outside_of_blocks_see_everything(library: KernelLibrary, shape: Shape) -> None:
    pages = Pages(library, shape)
    step = chain(6 * PAGE, PAGE)
    assert same_bits(pages.run(step, split=False, budget=4 * PAGE), pages.run(step, split=False))


def test_of_chunks_alike_a_block_sees_the_later_ones(library: KernelLibrary) -> None:
    pages = Pages(library, Shape(4, 2, 16))
    pages.fill(np.zeros_like(pages.keys), pages.values)
    pages.run(block(7), split=False, budget=5 * PAGE)
    assert [listed[:6] for listed in pages.chosen.tolist()] == [[5, 0, 4, 5, 6, 7]] * 2


@pytest.mark.parametrize("kind", SINGLE_KINDS)
def test_any_instruction_set_gives_the_same_bits(library: KernelLibrary, shape: Shape, kind: KVKind) -> None:
    pages, step = Pages(library, shape, kind), block(7)
    results = [pages.run(step, split=False, isa=isa, budget=4 * PAGE) for isa in RUNNABLE]
    assert all(same_bits(result, results[0]) for result in results)


def test_a_block_beside_other_sequences_has_the_bits_it_has_alone(library: KernelLibrary) -> None:
    """Two pages of room for tokens are needed: the other sequence has a few."""
    shape, tables = Shape(9, 3, 64), tables_of(2)
    pages = Pages(library, shape)
    alone = chain(7 * PAGE, PAGE, tables[1:])
    alone = replace(alone, batch=replace(alone.batch, blocks=np.zeros(1, np.int32)))
    both = tree([70, 7 * PAGE], [list(range(-1, 8)), list(range(-1, PAGE - 1))], tables)
    both = replace(both, batch=replace(both.batch, blocks=np.array([9], np.int32)))
    result = pages.run(both, split=False, budget=4 * PAGE, most_tokens=2 * PAGE)
    assert same_bits(result[9:], pages.run(alone, split=False, budget=4 * PAGE))
