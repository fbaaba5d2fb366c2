"""Models given rows of numbers and three positions a token: transformers' logits, and the bits of token ids.

Also rows that see each other, and rows of several parts, of which some enter after later layers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from edgeinfer.backends.base import Device, DeviceOptions, Limits, open_device
from edgeinfer.backends.reference import ReferenceDevice
from edgeinfer.backends.weights import matrix
from edgeinfer.engine.run.executor import Executor
from edgeinfer.errors import ContextOverflow, UnsupportedModel
from edgeinfer.graph.ops.embed import Embed
from edgeinfer.graph.step import InputRows, join, same_axes
from edgeinfer.models.load import open_model
from tests.golden.goldens import distance
from tests.golden.row_goldens import AXED, LIMITS, NAMES, WHOLE, RowGolden, RowText, executor, feed, read

TOLERANCES = {"reference": 1e-5, "cpu": 2e-3}
"""The cpu keeps keys and values as float16."""
CUTS = ([1], [10, 34], [20], [3, 12, 13, 29, 50, 51, 52], list(range(1, 80)))
"""Of texts whose rows are at 10 to 33 and 45 to 56."""


@pytest.fixture(scope="module")
def cpu() -> Iterator[Device]:
    device = open_device("cpu", DeviceOptions(n_workers=2))
    yield device
    device.close()


@pytest.fixture(scope="module", params=NAMES)
def golden(request: pytest.FixtureRequest) -> RowGolden:
    return RowGolden.read(request.param)


@pytest.fixture(scope="module", params=["reference", "cpu"])
def device(request: pytest.FixtureRequest, cpu: Device) -> Device:
    return cpu if request.param == "cpu" else ReferenceDevice()


@pytest.fixture(scope="module")
def on_cpu(cpu: Device, golden: RowGolden) -> Iterator[Executor]:
    with executor(cpu, golden.model) as found:
        yield found


def test_logits_are_those_of_transformers(device: Device, golden: RowGolden) -> None:
    with executor(device, golden.model) as opened:
        assert golden.error(read(opened, golden.text)) < TOLERANCES[device.name]
        assert golden.error(read(opened, golden.text, CUTS[3])) < TOLERANCES[device.name]


@pytest.mark.parametrize("name", AXED)
def test_axes_matter(name: str) -> None:
    golden = RowGolden.read(name)
    with executor(ReferenceDevice(), golden.model) as opened:
        assert golden.error(read(opened, replace(golden.text, axes=None))) > 1e-2


@pytest.mark.parametrize("name", WHOLE)
def test_it_matters_that_rows_see_each_other(name: str) -> None:
    golden = RowGolden.read(name)
    with executor(ReferenceDevice(), golden.model) as opened:
        assert golden.error(read(opened, replace(golden.text, images=()))) > 1e-2


def test_parts_of_rows_matter() -> None:
    golden = RowGolden.read("qwen3vl-deep-f32")
    with executor(ReferenceDevice(), golden.model) as opened:
        for first in (32, 64):
            rows = golden.text.rows.copy()
            rows[:, first : first + 32] = 0.0
            assert golden.error(read(opened, replace(golden.text, rows=rows))) > 1e-2


@pytest.mark.parametrize("cuts", CUTS, ids=len)
def test_bits_in_chunks_are_those_of_one_pass(on_cpu: Executor, golden: RowGolden, cuts: list[int]) -> None:
    assert read(on_cpu, golden.text, cuts).tobytes() == read(on_cpu, golden.text).tobytes()


def test_bits_in_a_pass_of_several_sequences_are_those_alone(on_cpu: Executor, golden: RowGolden) -> None:
    text, first = golden.text, 10 if golden.text.images else 20
    other = RowText(text.tokens[:9], text.rows[:0], None)
    alone = [read(on_cpu, text)[first:], read(on_cpu, other), read(on_cpu, text.part(0, 60))]
    sequences = [on_cpu.create() for _ in alone]
    feed(on_cpu, sequences[0], text.part(0, first))
    parts = text.part(first, 80), other, text.part(0, 60)
    for few in ((0, 1), (2, 1)):  # tokens of a pass are limited
        batches = [parts[each].batch(sequences[each], on_cpu.n_cached(sequences[each])) for each in few]
        logits = on_cpu.evaluate(join(batches))
        assert logits.tobytes() == np.concatenate([alone[each] for each in few]).tobytes()
    for sequence in sequences:
        on_cpu.free(sequence)


def test_bits_in_a_tree_are_those_of_its_paths(on_cpu: Executor, golden: RowGolden) -> None:
    """A path of rows of the second image, which do not see each other there, and two of ids that leave it."""
    text, sequence = replace(golden.text, images=()), on_cpu.create()
    feed(on_cpu, sequence, text.part(0, 45))
    rows, parents = text.part(45, 49), np.array([-1, 0, 1, 2, 1, 0, 5], np.int32)
    axes = None if rows.axes is None else np.concatenate([rows.axes, same_axes(np.array([60, 61, 62], np.int32))])
    tree = RowText(np.concatenate([rows.tokens, np.array([7, 8, 9], np.int32)]), rows.rows, axes)
    positions = np.array([45, 46, 47, 48, 47, 46, 47], np.int32)
    batch = replace(tree.batch(sequence, 45), positions=positions, parents=parents)
    paths = [np.array(path) for path in ([0, 1, 2, 3], [0, 1, 4], [0, 5, 6])]
    alone = []
    for path in paths:
        own, twin = batch.rows_of(path), on_cpu.branch(sequence)
        chosen = rows.rows[:0] if own is None else own.values
        alone.append(feed(on_cpu, twin, RowText(tree.tokens[path], chosen, None if axes is None else axes[path])))
        on_cpu.truncate(twin, 0)
    logits = on_cpu.evaluate(batch).copy()
    assert [logits[path].tobytes() for path in paths] == [each.tobytes() for each in alone]
    on_cpu.commit(sequence, np.array([0, 1, 4], np.int32))
    after = RowText(np.array([7, 3], np.int32), text.rows[:0], None if axes is None else axes[[4, 5]])
    plain = on_cpu.create()
    feed(on_cpu, plain, text.part(0, 47))
    expected = feed(on_cpu, plain, after)
    assert feed(on_cpu, sequence, after.part(1, 2)).tobytes() == expected[1:].tobytes()
    for each in (sequence, plain):
        on_cpu.free(each)


@pytest.mark.parametrize("name", [*WHOLE, "qwen3vl-deep-f32"])
def test_an_image_and_drafts_of_other_texts_in_one_pass_keep_their_bits(cpu: Device, name: str) -> None:
    text, parents = RowGolden.read(name).text, np.array([-1, 0, 1, 1, 0, 4], np.int32)
    drafts = RowText(np.array([7, 8, 9, 10, 8, 11], np.int32), text.rows[:0], None)
    with executor(cpu, RowGolden.read(name).model) as opened:
        image, drafted = opened.create(), opened.create()
        feed(opened, image, text.part(0, 10))
        feed(opened, drafted, text.part(0, 58))
        tree = replace(
            drafts.batch(drafted, 58), positions=np.array([58, 59, 60, 60, 59, 60], np.int32), parents=parents
        )
        alone = opened.evaluate(tree).copy()
        batches = [text.part(10, 57).batch(image, 10), tree]
        for both, first in ((batches, 47), (batches[::-1], 0)):
            logits = opened.evaluate(join(both))
            assert logits[first : first + 6].tobytes() == alone.tobytes()
            rows = np.delete(logits, range(first, first + 6), axis=0)
            assert rows.tobytes() == read(opened, text)[10:57].tobytes()


@pytest.mark.parametrize("name", WHOLE)
def test_an_image_over_many_pages_is_as_on_the_reference(cpu: Device, name: str) -> None:
    golden, random = RowGolden.read(name), np.random.default_rng(6)
    tokens, n_rows, limits = random.integers(0, 200, 300).astype(np.int32), 230, Limits(512, 16, 320, 320)
    tokens[20 : 20 + n_rows] = -1
    rows = golden.text.rows[random.integers(0, len(golden.text.rows), n_rows)]
    text, found = RowText(tokens, rows, None, ((20, 20 + n_rows),)), []
    for device in (ReferenceDevice(), cpu):
        with executor(device, golden.model, limits=limits) as opened:
            found.append(read(opened, text))
            parts = read(opened, text, [5, 20, 250, 251])
            assert device.name != "cpu" or parts.tobytes() == found[-1].tobytes()
    assert distance(found[1], found[0]) < TOLERANCES["cpu"]


@pytest.mark.parametrize("name", WHOLE)
def test_half_an_image_that_is_cached_was_read_with_all_of_it(cpu: Device, name: str) -> None:
    text = RowGolden.read(name).text
    with executor(cpu, RowGolden.read(name).model) as opened:
        expected, sequence = read(opened, text), opened.create()
        feed(opened, sequence, text)
        for first in (50, 33, 12):
            reached = opened.truncate(sequence, first)
            assert feed(opened, sequence, text.part(reached, 80)).tobytes() == expected[reached:].tobytes()


@pytest.mark.parametrize(
    ("spans", "reason"),
    [
        ([[0, 0], [0, 1], [0, 3]], "not all in a chain"),
        ([[0, 1], [1, 1], [0, 2]], "fall along a chain"),
        ([[0, 2], [0, 1], [0, 2]], "fall along a chain"),
        ([[0, 1], [0, 0], [0, 2]], "contain their token"),
        ([[1, 1], [1, 1], [1, 2]], "contain their token"),
        ([[0, 0], [0, 1]], "another shape"),
    ],
)
def test_spans_that_cannot_be_are_refused(cpu: Device, spans: list[list[int]], reason: str) -> None:
    golden = RowGolden.read(WHOLE[0])
    with executor(cpu, golden.model) as opened:
        batch = RowText(np.array([1, 2, 3], np.int32), golden.text.rows[:0], None).batch(opened.create(), 0)
        with pytest.raises(ValueError, match=reason):
            opened.evaluate(replace(batch, spans=np.array(spans, np.int32)))


def test_models_without_attention_to_later_positions_refuse_spans(cpu: Device) -> None:
    golden = RowGolden.read("qwen2vl-f32")
    with executor(cpu, golden.model) as opened:
        batch = RowText(golden.text.tokens[:2], golden.text.rows[:0], None).batch(opened.create(), 0)
        with pytest.raises(UnsupportedModel, match="no attention that sees later positions"):
            opened.evaluate(replace(batch, spans=np.array([[0, 1], [0, 1]], np.int32)))


def test_rows_of_the_embedding_are_as_its_ids(cpu: Device, on_cpu: Executor, golden: RowGolden) -> None:
    ids = np.where(golden.text.tokens < 0, 5, golden.text.tokens).astype(np.int32)
    with open_model(golden.model) as model:
        embed = next(op for op in model.spec.ops() if isinstance(op, Embed))
        table = matrix(model.file, embed.weight) * np.float32(embed.scale)
    given = np.arange(len(ids)) % 3 > 0
    rows = np.full((int(given.sum()), golden.text.rows.shape[1]), -0.0, np.float32)
    rows[:, : table.shape[1]] = table[ids[given]]
    text = RowText(np.where(given, -1, ids).astype(np.int32), rows, None)
    with executor(cpu, golden.model, rows=False) as plain:
        expected = read(plain, RowText(ids, table[:0], None))
    assert read(on_cpu, text, [11, 12, 40]).tobytes() == expected.tobytes()
    assert read(on_cpu, RowText(ids, table[:0], None)).tobytes() == expected.tobytes()
    if golden.text.axes is not None:
        positions = same_axes(np.arange(len(ids), dtype=np.int32))
        assert read(on_cpu, replace(text, axes=positions), [7]).tobytes() == expected.tobytes()


def test_what_cannot_be_is_refused_before_anything_is_computed(cpu: Device, on_cpu: Executor) -> None:
    golden = RowGolden.read("qwen2vl-f32")
    with executor(cpu, golden.model, rows=False) as plain:
        sequence = plain.create()
        with pytest.raises(UnsupportedModel, match="opened for token ids alone"):
            feed(plain, sequence, replace(golden.text, axes=None))
        with pytest.raises(UnsupportedModel, match="one position a token"):
            feed(plain, sequence, RowText(np.array([1], np.int32), golden.text.rows[:0], np.zeros((1, 3), np.int32)))
        with pytest.raises(ValueError, match="need rows of numbers"):
            feed(plain, sequence, RowText(np.array([1, -1], np.int32), golden.text.rows[:0], None))
    with executor(cpu, golden.model) as opened:
        sequence = opened.create()
        batch = replace(golden.text.batch(sequence, 0), rows=InputRows(golden.text.rows[:3]))
        with pytest.raises(ValueError, match="rows of shape"):
            opened.evaluate(batch)
        assert golden.text.axes is not None
        with pytest.raises(ContextOverflow, match="along an axis"):
            feed(opened, sequence, replace(golden.text, axes=golden.text.axes + np.int32(LIMITS.n_context)))
        assert golden.error(feed(opened, sequence, golden.text)) < TOLERANCES["cpu"]
