"""Prompts with rows: names, axes, batches of any part, and rows read again after a failure or from a saved state."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from edgeinfer.backends.base import DeviceOptions
from edgeinfer.backends.reference import ReferenceDevice
from edgeinfer.engine.isolation.isolated import Isolated
from edgeinfer.engine.loading import load
from edgeinfer.engine.measure.power import PowerLimiter
from edgeinfer.engine.requests.prompt_rows import ROW, MixedPrompt, Piece, PromptRows
from edgeinfer.engine.run.evaluators import SequenceEvaluator, open_subject
from edgeinfer.engine.run.executor import Executor
from edgeinfer.engine.run.rescue import Rescued
from edgeinfer.errors import BadSetting, DeviceFailed, UnsupportedModel
from edgeinfer.graph.step import Batch, Inputs
from edgeinfer.load_options import LoadOptions
from edgeinfer.models.decoder_folder import DecoderFolder
from edgeinfer.models.gguf import GGUFFile
from tests.golden.goldens import distance
from tests.golden.row_goldens import LIMITS, NAMES, RowGolden, executor, feed
from tests.unit.engine.isolation.test_isolation import crash

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
        PromptRows(VALUES, whole=True),
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


def test_a_part_does_not_end_among_rows_that_see_each_other() -> None:
    inputs = Inputs(2, spans=True, most_whole=4)
    image, few = PromptRows(VALUES, whole=True), PromptRows(VALUES[:2], whole=True)
    prompt = MixedPrompt.of([5, image, few, 6, PromptRows(VALUES), 7], inputs, 32)
    assert prompt.whole == (range(1, 5), range(5, 7))
    assert [prompt.n_together(0, n) for n in range(1, 9)] == [1, 1, 1, 1, 5, 5, 7, 8]
    assert [prompt.n_together(1, n) for n in (1, 4, 5, 6, 7, 12)] == [4, 4, 4, 6, 7, 12]
    assert [prompt.n_together(3, n) for n in (1, 2, 3)] == [2, 2, 2]
    assert [prompt.n_together(8, n) for n in (1, 3)] == [1, 3]  # these see only what comes before them
    assert [prompt.least_together(first) for first in range(9)] == [1, 4, 3, 2, 1, 2, 1, 1, 1]
    named = list(prompt.tokens)
    spans = chain(prompt, 0, named[:8]).spans
    assert spans is not None
    assert spans.tolist() == [[0, last] for last in (0, 4, 4, 4, 4, 6, 6, 7)]
    rest = chain(prompt, 3, named[3:9]).spans
    assert rest is not None
    assert rest.tolist() == [[0, last] for last in (4, 4, 6, 6, 7, 8)]
    assert chain(prompt, 7, named[7:]).spans is None
    assert chain(prompt, 0, named[:1]).spans is None


@pytest.mark.parametrize(
    ("inputs", "error", "reason"),
    [
        (PLAIN, UnsupportedModel, "see only what comes before them"),
        (Inputs(2, spans=True, most_whole=3), BadSetting, "4 rows that see each other: .* at most 3 in one pass"),
    ],
)
def test_rows_that_cannot_see_each_other_are_refused(inputs: Inputs, error: type[Exception], reason: str) -> None:
    with pytest.raises(error, match=reason):
        MixedPrompt.of([5, PromptRows(VALUES, whole=True)], inputs, 32)


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


CLOSE = 1e-5
"""The reference device sums in an order that depends on the pass."""


@pytest.fixture(scope="module", params=NAMES)
def golden(request: pytest.FixtureRequest) -> RowGolden:
    return RowGolden.read(request.param)


@pytest.fixture
def direct(golden: RowGolden) -> Iterator[Executor]:
    with executor(ReferenceDevice(), golden.model) as found:
        yield found


class Failing:
    """An executor that fails once it is told to."""

    def __init__(self, inner: Executor) -> None:
        self._inner, self.fails = inner, False

    def __getattr__(self, name: str) -> object:
        if self.fails and name in ("evaluate", "restore"):
            raise DeviceFailed("the driver was reset")
        return getattr(self._inner, name)


def journey(evaluator: SequenceEvaluator, golden: RowGolden, trouble: object = None) -> list[np.ndarray]:
    """A text in parts, cut back into its first image, branched; `trouble` comes in the middle of it.

    What must be read again elsewhere cannot be cut back into an image whose rows see each other, but to its beginning.
    """
    one, text = evaluator.create(), golden.text
    cut = 58 if text.images else 50  # within the second image, unless it must be read in one pass
    found = [feed(evaluator, one, text.part(0, cut))]
    reached = evaluator.truncate(one, 30)
    found.append(feed(evaluator, one, text.part(reached, cut + 2))[30 - reached :])
    two = evaluator.branch(one)
    state = evaluator.save(one)
    if callable(trouble):
        trouble()
    found.append(feed(evaluator, one, text.part(cut + 2, cut + 5)))
    found.append(feed(evaluator, two, text.part(cut + 2, 80)))
    evaluator.truncate(one, 0)
    evaluator.restore(one, state)
    found.append(feed(evaluator, one, text.part(cut + 2, cut + 7)))
    return found


def close(found: list[np.ndarray], expected: list[np.ndarray]) -> bool:
    return max(map(distance, found, expected)) < CLOSE


def test_a_text_goes_on_where_a_device_fails(direct: Executor, golden: RowGolden) -> None:
    expected = journey(direct, golden)
    with executor(ReferenceDevice(), golden.model) as first, executor(ReferenceDevice(), golden.model) as second:
        failing = Failing(first)
        rescued = Rescued(failing, lambda: second)  # type: ignore[arg-type]

        def fail() -> None:
            failing.fails = True

        assert close(journey(rescued, golden, fail), expected)
        assert len(rescued.take_notices()) == 1


def test_a_saved_state_keeps_what_must_be_read_again(direct: Executor, golden: RowGolden) -> None:
    expected = feed(direct, direct.create(), golden.text)[60:]
    with executor(ReferenceDevice(), golden.model) as first, executor(ReferenceDevice(), golden.model) as second:
        failing = Failing(first)
        rescued = Rescued(failing, lambda: second)  # type: ignore[arg-type]
        one, two = rescued.create(), rescued.create()
        feed(rescued, one, golden.text.part(0, 60))
        rescued.restore(two, rescued.save(one))
        failing.fails = True
        assert distance(feed(rescued, two, golden.text.part(60, 80)), expected) < CLOSE


def isolated(file: GGUFFile | DecoderFolder, *, rows: bool) -> Isolated:
    load = LoadOptions(device="reference", mode="max", rows=rows)
    return Isolated.open(file, LIMITS, DeviceOptions(n_workers=1), load, ("performance",), PowerLimiter.free(1))


def test_another_process_reads_rows_again(direct: Executor, golden: RowGolden) -> None:
    expected = journey(direct, golden)
    load = LoadOptions(device="reference", n_context=LIMITS.n_context, rows=True)
    with open_subject(golden.model, load).file as file:
        with isolated(file, rows=True) as apart:
            assert close(journey(apart, golden, lambda: crash(apart)), expected)
            assert len(apart.take_notices()) == 1
        with isolated(file, rows=False) as apart:
            sequence = apart.create()
            with pytest.raises(UnsupportedModel, match="token ids alone"):
                feed(apart, sequence, golden.text)
