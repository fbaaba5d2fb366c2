"""Attention with a first and a last position for each token: images among text, and windows of an image's patches."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from edgeinfer.graph.step import Inputs, Step, causal_spans
from edgeinfer.jit.library import KernelLibrary
from edgeinfer.settings import KVKind
from tests.unit.backends.cpu.attention_calls import Pages, Shape, both_ways, chain, tables_of, tree
from tests.unit.backends.cpu.kernel_calls import RUNNABLE, same_bits

SHAPES = (
    Shape(4, 4, 16),
    Shape(9, 3, 64, cap=2.0),
    Shape(7, 1, 96),
    Shape(14, 2, 24, window=7),
    Shape(4, 1, 128, window=40, has_sinks=True),
    Shape(6, 2, 24, values=72),
    Shape(4, 2, 16, window=64, chunked=True),
)
KINDS: tuple[KVKind, ...] = ("f16", "q8", "q8q4", "q4")
IMAGES = [(3, 9), (9, 10), (14, 52), (52, 59)]
"""First token of each image, and the one after its last."""
BRANCHING = [-1, 0, 1, 0, 3, 2, -1, 6]


@pytest.fixture(params=SHAPES, ids=str)
def shape(request: pytest.FixtureRequest) -> Shape:
    found: Shape = request.param
    return found


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> KVKind:
    found: KVKind = request.param
    return found


def with_images(step: Step, images: list[tuple[int, int]]) -> Step:
    """A step some of whose tokens are those of images, which see each other."""
    positions = step.batch.positions
    spans = causal_spans(positions)
    for first, stop in images:
        spans[first:stop, 1] = positions[stop - 1]
    return with_spans(step, spans)


def with_spans(step: Step, spans: NDArray[np.int32]) -> Step:
    """A step with spans, after they were checked."""
    batch = replace(step.batch, spans=spans)
    Inputs(spans=True).check(batch, 1 << 20)
    return replace(step, batch=batch)


def in_windows(n_tokens: int, sizes: list[int]) -> Step:
    """All patches of an image, which see those of their own window of it."""
    ends = np.cumsum(sizes)
    assert ends[-1] == n_tokens
    own = np.searchsorted(ends, np.arange(n_tokens), side="right")
    return with_spans(chain(0, n_tokens), np.stack([(ends - sizes)[own], ends[own] - 1], axis=1).astype(np.int32))


@pytest.mark.parametrize("n_cached", [0, 50, 64, 130])
def test_rows_of_an_image_see_each_other(library: KernelLibrary, shape: Shape, kind: KVKind, n_cached: int) -> None:
    pages, step = Pages(library, shape, kind), with_images(chain(n_cached, 64), IMAGES)
    pages.blank_others(step)
    result = both_ways(pages, step)
    assert np.allclose(result, pages.expected(step), rtol=0, atol=1e-5)
    assert not np.allclose(result, pages.run(step, split=False, heeds=False), rtol=0, atol=1e-3)


def test_bits_do_not_depend_on_the_pass(library: KernelLibrary, shape: Shape, kind: KVKind) -> None:
    """Text and images in one pass, and in several of which none ends within an image."""
    pages = Pages(library, shape, kind)
    whole = pages.run(with_images(chain(100, 64), IMAGES), split=False)
    for cuts in ([3], [9, 10], [14, 52], [1, 2, 3, 13, 60, 61], [59]):
        parts = []
        for first, stop in zip([0, *cuts], [*cuts, 64], strict=True):
            own = [(begin - first, end - first) for begin, end in IMAGES if first <= begin < stop]
            step = with_images(chain(100 + first, stop - first), own)
            parts.append(pages.run(step, split=stop - first <= 8))
        assert same_bits(np.concatenate(parts), whole)


def test_bits_of_the_rest_of_an_image_are_those_of_all_of_it(
    library: KernelLibrary, shape: Shape, kind: KVKind
) -> None:
    pages = Pages(library, shape, kind)
    whole = pages.run(with_images(chain(70, 64), IMAGES), split=False)
    for n_before in (15, 30, 51):
        own = [(max(begin - n_before, 0), end - n_before) for begin, end in IMAGES if end > n_before]
        rest = with_images(chain(70 + n_before, 64 - n_before), own)
        assert same_bits(pages.run(rest, split=False), whole[n_before:])


def test_trees_beside_an_image_keep_their_bits(library: KernelLibrary, shape: Shape, kind: KVKind) -> None:
    tables = tables_of(2)
    both = tree([40, 70], [list(range(-1, 39)), BRANCHING], tables)
    pages, step = Pages(library, shape, kind), with_images(both, [(5, 30)])
    pages.blank_others(step)
    result = both_ways(pages, step)
    assert np.allclose(result, pages.expected(step), rtol=0, atol=1e-5)
    assert same_bits(result[40:], pages.run(both, split=False)[40:])
    image = with_images(chain(40, 40, tables[:1]), [(5, 30)])
    assert same_bits(result[:40], pages.run(image, split=False))


@pytest.mark.parametrize("sizes", [[64], [16, 16, 16, 16], [1, 20, 3, 40], [9] * 7 + [1], [30, 34]], ids=str)
def test_patches_see_those_of_their_window(
    library: KernelLibrary, shape: Shape, kind: KVKind, sizes: list[int]
) -> None:
    pages, step = Pages(library, shape, kind), in_windows(64, sizes)
    pages.blank_others(step)
    assert np.allclose(both_ways(pages, step), pages.expected(step), rtol=0, atol=1e-5)


def test_windows_over_several_pages(library: KernelLibrary, kind: KVKind) -> None:
    shape, sizes = Shape(4, 2, 16), [100, 7, 64, 81, 48]
    pages, step = Pages(library, shape, kind), in_windows(300, sizes)
    result = pages.run(step, split=False, workers=2, most_tokens=300)
    assert np.allclose(result, pages.expected(step), rtol=0, atol=1e-5)
    starts = np.cumsum([0, *sizes])
    for number in (1, 3):  # a window has the same bits in a pass that begins with it
        first, size = int(starts[number]), sizes[number]
        spans = np.tile(np.array([first, first + size - 1], np.int32), (size, 1))
        alone = with_spans(chain(first, size), spans)
        assert same_bits(pages.run(alone, split=False, most_tokens=300), result[first : first + size])


def test_spans_up_to_each_token_give_the_bits_of_none(library: KernelLibrary, shape: Shape, kind: KVKind) -> None:
    pages = Pages(library, shape, kind)
    for step in (chain(90, 40), chain(63, 1), tree([70, 3], [list(range(-1, 11)), BRANCHING], tables_of(2))):
        result = both_ways(pages, with_spans(step, causal_spans(step.batch.positions)))
        assert same_bits(result, pages.run(step, split=False))
        assert same_bits(result, pages.run(step, split=True, heeds=False))


@pytest.mark.parametrize("isa", RUNNABLE)
def test_any_instruction_set_gives_the_same_bits(library: KernelLibrary, shape: Shape, isa: str) -> None:
    pages = Pages(library, shape)
    for step in (with_images(chain(90, 64), IMAGES), in_windows(40, [17, 3, 20])):
        assert same_bits(pages.run(step, split=False, isa=isa), pages.run(step, split=False))
