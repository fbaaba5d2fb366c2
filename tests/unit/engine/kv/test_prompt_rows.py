"""Prompts with rows: their names, where tokens and rows stand along the axes, and the batches of any part."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from edgeinfer.engine.kv.prompt_rows import ROW, MixedPrompt, Piece, PromptRows
from edgeinfer.engine.loading import load
from edgeinfer.errors import BadSetting
from edgeinfer.graph.step import Batch, Inputs
from tests.golden.row_goldens import RowGolden

AXED, PLAIN = Inputs(2, axes=True), Inputs(2)
VALUES = np.arange(8, dtype=np.float32).reshape(4, 2)
SQUARE = np.array([[0, 0, 0], [0, 0, 1], [0, 1, 0], [0, 1, 1]])


def chain(prompt: MixedPrompt, first: int, named: list[int]) -> Batch:
    ids, order = np.array([max(token, ROW) for token in named], np.int32), np.arange(len(named), dtype=np.int32)
    batch = Batch(ids, np.zeros(len(named), np.int32), order + np.int32(first), order - 1, order[:0])
    return prompt.completed(batch, named)


def test_equal_names_are_equal_rows() -> None:
    found = [
        PromptRows(VALUES),
        PromptRows(VALUES.reshape(2, 4)),
        PromptRows(VALUES[:3]),
        PromptRows(VALUES + 1),
        PromptRows(VALUES, SQUARE),
        PromptRows(VALUES, SQUARE[:, ::-1]),
    ]
    names = [name for rows in found for name in rows.names]
    assert len(set(names)) == len(names) == sum(len(rows.values) for rows in found)
    assert max(names) < 0
    assert PromptRows(VALUES.copy(), SQUARE.tolist()).names == found[4].names


def test_axes_are_counted_as_transformers_counts_them() -> None:
    golden = RowGolden.read("qwen2vl-f32")
    text, grids = golden.text, (np.indices((1, 4, 6)), np.indices((2, 3, 2)))
    images = [
        PromptRows(rows, grid.reshape(3, -1).T) for rows, grid in zip(np.split(text.rows, [24]), grids, strict=True)
    ]
    pieces: list[Piece] = [*range(10), images[0], *range(11), images[1], *range(23)]
    prompt = MixedPrompt.of(pieces, Inputs(text.rows.shape[1], axes=True), 128)
    assert text.axes is not None
    assert prompt.axes is not None
    assert prompt.axes.tolist() == text.axes.tolist()
    after = chain(prompt, len(text.tokens), [3, 4])
    assert after.axes is not None
    assert after.axes.tolist() == [[text.axes.max() + 1 + n] * 3 for n in range(2)]
    assert after.rows is None


def test_a_part_has_its_own_rows_and_axes() -> None:
    prompt = MixedPrompt.of([5, PromptRows(VALUES, SQUARE), 6, PromptRows(VALUES[:2])], AXED, 32)
    tokens = list(prompt.tokens)
    assert prompt.ids == [5, 6]
    batch = chain(prompt, 3, tokens[3:7])
    assert batch.tokens.tolist() == [ROW, ROW, 6, ROW]
    assert batch.named_tokens() == tokens[3:7]
    assert batch.rows is not None
    assert batch.axes is not None
    assert batch.rows.values.tolist() == [*VALUES[2:].tolist(), VALUES[0].tolist()]
    assert batch.axes.tolist() == [[1, 2, 1], [1, 2, 2], [3, 3, 3], [4, 4, 4]]
    assert prompt.shift == 6 - 8
    chosen = batch.rows_of(np.array([1, 2]))
    assert chosen is not None
    assert chosen.values.tolist() == VALUES[3:].tolist()
    assert batch.rows_of(np.array([2])) is None


def test_models_with_one_position_get_no_axes() -> None:
    prompt = MixedPrompt.of([5, PromptRows(VALUES), 6], PLAIN, 32)
    assert prompt.axes is None
    assert chain(prompt, 0, list(prompt.tokens)).axes is None


@pytest.mark.parametrize(
    ("values", "axes", "reason"),
    [
        (np.zeros(4), None, r"rows of shape \(4,\)"),
        (np.zeros((0, 4)), None, "give one row"),
        ([[1.0, np.nan]], None, "not finite"),
        ([[1e39, 1.0]], None, "not finite"),
        ([[1.0], [1.0, 2.0]], None, "rows of different lengths"),
        ([["a"]], None, "rows of <U1 are none: give numbers"),
        (None, None, "rows of object are none: give numbers"),
        (np.zeros((1, 2), complex), None, "rows of complex128"),
        (VALUES, [[0, 0, 0], [0, 0]], "axes of different lengths"),
        (VALUES, SQUARE[:2], "three whole numbers for each row"),
        (VALUES, SQUARE * 0.5, "three whole numbers for each row"),
        (VALUES, SQUARE - 1, "count from 0"),
    ],
)
def test_what_is_no_row_is_refused(values: object, axes: object, reason: str) -> None:
    with pytest.raises(BadSetting, match=reason):
        PromptRows(values, axes)  # type: ignore[arg-type]


@pytest.mark.parametrize("pieces", [[1.5], [[1, 2]], ["the"], [VALUES], [PromptRows(VALUES), 1.5]])
def test_what_is_neither_an_id_nor_a_row_is_refused(tiny_model: Path, pieces: list[object]) -> None:
    with load(tiny_model, device="reference", spec="off") as llm:
        with pytest.raises(BadSetting, match="a list of token ids, which PromptRows may be among"):
            llm.complete(pieces)  # type: ignore[arg-type]
        with pytest.raises(BadSetting, match="a list of token ids"):
            llm.embed([pieces])  # type: ignore[list-item]
        assert llm.prompts.checked(np.arange(3, dtype=np.int64)) == [0, 1, 2]  # type: ignore[arg-type]
