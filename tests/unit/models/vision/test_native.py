"""Images in their own shape: how large they are made, and where their rows stand along three axes."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from edgeinfer.engine.requests.prompt_rows import MixedPrompt, PromptRows
from edgeinfer.errors import BadImage
from edgeinfer.graph.step import Inputs
from edgeinfer.models.vision.native import MOST_TOKENS, QWEN_MARKS, Resolution

PER_TOKEN = 28 * 28
QWEN = Resolution(14, 2, 4 * PER_TOKEN, MOST_TOKENS * PER_TOKEN, (0.5,) * 3, (0.5,) * 3)


@pytest.mark.parametrize("size", [(1, 1), (20, 4000), (4000, 20), (3024, 4032), (6000, 8000), (57, 3), (700, 900)])
def test_no_image_has_more_patches_than_were_planned_for(size: tuple[int, int]) -> None:
    for resolution in (QWEN, replace(QWEN, most=20 * PER_TOKEN), replace(QWEN, least=64 * PER_TOKEN)):
        plan = resolution.plan(size, QWEN_MARKS)
        (tile,) = plan.tiles
        down, across = tile.grid
        assert down % 2 == across % 2 == 0
        assert 0 < down * across == 4 * tile.n_rows <= resolution.n_most
        assert plan.n_rows == tile.n_rows


def test_marks_around_an_image_are_there_once() -> None:
    for written in ("<|vision_start|><|image_pad|><|vision_end|>", "<|image_pad|>"):
        assert re.split(f"({QWEN_MARKS.placeholder})", f"a {written} b") == ["a ", written, " b"]
    assert QWEN.plan((56, 56), QWEN_MARKS).parts == ("<|vision_start|>", 0, "<|vision_end|>")


def test_an_image_within_the_limits_keeps_its_size() -> None:
    assert QWEN.grid((280, 560)) == (20, 40)
    assert QWEN.grid((2800, 2800)) == (70, 70)


def test_a_strip_is_refused() -> None:
    with pytest.raises(BadImage, match="200 times"):
        QWEN.plan((2, 402), QWEN_MARKS)


def test_patches_of_a_block_follow_one_another() -> None:
    pixels = np.zeros((56, 84, 3), np.uint8)
    pixels[14:28, 14:28] = 255
    patches = QWEN.patches(pixels, (4, 6))
    assert patches.shape == (24, 3 * 14 * 14)
    assert np.flatnonzero(patches.max(axis=1) > 0).tolist() == [3]
    assert QWEN.axes((4, 6))[:6].tolist() == [[0, 0, 0], [0, 0, 1], [0, 1, 0], [0, 1, 1], [0, 0, 2], [0, 0, 3]]


def test_positions_go_on_after_the_largest_of_an_image() -> None:
    """The example of Qwen2-VL's paper, with two images."""
    pieces: list[int | PromptRows] = [7, 7]
    for size in ((56, 84), (112, 56)):
        (tile,) = QWEN.plan(size, QWEN_MARKS).tiles
        pieces += [PromptRows(np.ones((tile.n_rows, 8), np.float32), tile.axes), 8]
    axes = MixedPrompt.of(pieces, Inputs(row_width=8, axes=True), 64).axes
    assert axes is not None
    first = [[2, 2 + row, 2 + column] for row in range(2) for column in range(3)]
    second = [[6, 6 + row, 6 + column] for row in range(4) for column in range(2)]
    assert axes.tolist() == [[0] * 3, [1] * 3, *first, [5] * 3, *second, [10] * 3]
