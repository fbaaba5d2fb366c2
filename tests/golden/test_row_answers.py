"""Answers to prompts with rows of numbers: the same with drafts, together, on branches, saved, preempted, isolated."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from edgeinfer.engine.llm import LLM
from edgeinfer.engine.loading import load
from edgeinfer.engine.requests.prompt_rows import Piece, PromptRows
from edgeinfer.engine.scheduler.stream import TextStream
from edgeinfer.engine.session import Session
from edgeinfer.errors import BadSetting, ContextOverflow, DeviceUnavailable, UnsupportedModel
from tests.golden.row_goldens import RowGolden

FAMILIES = ("qwen2vl-f32", "qwen35-f32", "qwen3vl-deep-f32", "gemma3-f32-whole", "gemma4-f32-whole")
"""Those that end in "whole" have images whose rows see each other."""
N_TOKENS, GRID = 40, np.indices((1, 4, 6)).reshape(3, -1).T
OTHERWISE = GRID[::-1]
"""The places of an image in another order; families without places read its rows one after the other."""
LIKELY = {"temperature": 0.0, "repeat_penalty": 1.3}
"""Penalties make these small models say more than one word; they look at tokens, and must not at rows."""


@pytest.fixture(scope="module", params=FAMILIES)
def golden(request: pytest.FixtureRequest) -> RowGolden:
    return RowGolden.read(request.param)


@pytest.fixture(scope="module")
def plain(golden: RowGolden) -> Iterator[LLM]:
    with load(golden.model, device="cpu", n_context=256, n_sessions=4, spec="off", rows=True) as llm:
        yield llm


@pytest.fixture(scope="module")
def drafting(golden: RowGolden) -> Iterator[LLM]:
    with load(golden.model, device="cpu", n_context=256, n_sessions=4, spec=5, rows=True) as llm:
        yield llm


def rows_of(golden: RowGolden, rows: slice, number: int = 0, grid: NDArray[np.int64] | None = None) -> PromptRows:
    """An image as the family has it."""
    values = golden.text.rows[rows] + np.float32(number)
    if golden.text.images:
        return PromptRows(values, whole=grid is not OTHERWISE)
    return PromptRows(values, grid)


def prompt(golden: RowGolden, number: int = 0, grid: NDArray[np.int64] = GRID) -> list[Piece]:
    """Text, an image, text, and another image."""
    image = rows_of(golden, slice(24), number, grid)
    return [*range(40, 60), image, *range(30), rows_of(golden, slice(24, 36)), 7, 8]


def answer(session: Session | LLM, pieces: Sequence[Piece]) -> tuple[int, ...]:
    return read(said(session, pieces))


def read(stream: TextStream) -> tuple[int, ...]:
    """The tokens of an answer, when it is over."""
    list(stream)
    return stream.tokens


def said(session: Session | LLM, pieces: Sequence[Piece]) -> TextStream:
    return session.complete(pieces, max_tokens=N_TOKENS, **LIKELY)  # type: ignore[arg-type]


def alone(llm: LLM, pieces: Sequence[Piece]) -> tuple[int, ...]:
    with llm.session() as session:
        return answer(session, pieces)


def test_drafts_change_nothing(plain: LLM, drafting: LLM, golden: RowGolden) -> None:
    for number in range(3):
        expected = alone(plain, prompt(golden, number))
        assert alone(drafting, prompt(golden, number)) == expected
    assert expected != alone(plain, prompt(golden, 0))


def test_rows_are_read_once_and_never_taken_for_others(plain: LLM, golden: RowGolden) -> None:
    with plain.session() as session:
        expected = answer(session, prompt(golden))
        again = said(session, prompt(golden))
        assert read(again) == expected
        assert again.stats is not None
        assert again.stats.n_cached >= 64  # whole pages, where there are states
        other = said(session, prompt(golden, 1))
        assert read(other) == alone(plain, prompt(golden, 1))
        assert other.stats is not None
        assert other.stats.n_cached <= 20
        moved = prompt(golden, grid=OTHERWISE)
        found = said(session, moved)
        assert read(found) == alone(plain, moved)
        assert found.stats is not None
        assert found.stats.n_cached <= 20


def test_sessions_branch_save_and_restore(plain: LLM, drafting: LLM, golden: RowGolden, tmp_path: Path) -> None:
    longer = [*prompt(golden), 9, 10, 11]
    expected = alone(plain, longer)
    with drafting.session() as session:
        answer(session, prompt(golden))
        session.save(tmp_path / "saved")
        with session.branch() as twin:
            assert answer(twin, longer) == expected
    with plain.session() as session:
        session.restore(tmp_path / "saved")
        found = said(session, longer)
        assert read(found) == expected
        assert found.stats is not None
        assert found.stats.n_cached >= 64  # whole pages, where there are states


def test_answers_made_together_are_those_made_alone(plain: LLM, drafting: LLM, golden: RowGolden) -> None:
    prompts: list[list[Piece]] = [prompt(golden, number) for number in range(4)]
    prompts += [list(range(20, 90)), prompt(golden)[:21]]
    expected = [alone(plain, each) for each in prompts]
    for llm in (plain, drafting):
        with ThreadPoolExecutor(len(prompts)) as pool:
            assert list(pool.map(lambda each, llm=llm: answer(llm, each), prompts)) == expected  # type: ignore[misc]


def test_memory_that_was_taken_is_read_again(plain: LLM, golden: RowGolden) -> None:
    """A third of the memory that these need: answers are preempted, sessions at rest lose theirs."""
    prompts = [prompt(golden, number) for number in range(3)]
    expected = [alone(plain, each) for each in prompts]
    with load(golden.model, device="cpu", n_context=160, spec="off", rows=True) as llm:
        sessions = [llm.session() for _ in prompts]
        for _ in range(2):
            assert [answer(*each) for each in zip(sessions, prompts, strict=True)] == expected
        with ThreadPoolExecutor(3) as pool:
            assert list(pool.map(lambda each: answer(llm, each), prompts)) == expected


def test_a_process_of_its_own_gives_the_same(plain: LLM, golden: RowGolden) -> None:
    with load(golden.model, device="cpu", n_context=256, spec="off", rows=True, isolate=True) as llm:
        assert alone(llm, prompt(golden)) == alone(plain, prompt(golden))
        with pytest.raises(UnsupportedModel, match="token ids alone"), load(golden.model, isolate=True) as other:
            answer(other, prompt(golden))


def test_rows_that_cannot_be_are_refused(plain: LLM, golden: RowGolden) -> None:
    with pytest.raises(BadSetting, match=rf"rows of 7 numbers: this model's have {golden.text.rows.shape[1]}"):
        said(plain, [1, PromptRows(np.zeros((2, 7)))])
    if golden.text.axes is None:
        with pytest.raises(BadSetting, match="2000 rows that see each other: this model reads at most"):
            said(plain, [1, PromptRows(np.zeros((2000, 32)), whole=True)])
    else:
        with pytest.raises(ContextOverflow, match="along an axis"):
            said(plain, [1, PromptRows(golden.text.rows[:1], np.array([[0, 255, 0]]))])
        with pytest.raises(UnsupportedModel, match="see only what comes before them: leave whole out"):
            said(plain, [1, PromptRows(golden.text.rows[:1], whole=True)])
    with pytest.raises(BadSetting, match="no token -1"):
        said(plain, [1, -1])
    with load(golden.model, device="cpu", n_context=64, spec="off") as llm:
        with pytest.raises(UnsupportedModel, match=r"loaded for token ids alone.* rows=True"):
            said(llm, prompt(golden))
        assert answer(llm, list(range(20, 40)))
    with load(RowGolden.read("gemma3-f32").model, device="cpu", n_context=64, spec="off", rows=True) as llm:
        assert answer(llm, [1, 2, PromptRows(np.full((3, 32), 0.1)), 4])
        with pytest.raises(UnsupportedModel, match="one position a token"):
            said(llm, [1, PromptRows(np.zeros((1, 32)), np.zeros((1, 3), int))])


@pytest.mark.parametrize("family", ["gemma3-f32-whole", "gemma4-f32-whole"])
def test_images_are_read_whole_however_prompts_are_cut(family: str) -> None:
    """Images nearly as large as a pass, together with others and with answers that are under way."""
    golden = RowGolden.read(family)
    random = np.random.default_rng(8)
    images = [golden.text.rows[random.integers(0, 36, n_rows)] for n_rows in (250, 256, 1, 199)]
    prompts: list[list[Piece]] = [
        [*range(20), PromptRows(images[0], whole=True), *range(30, 90), PromptRows(images[1], whole=True), 5],
        [PromptRows(images[1], whole=True), PromptRows(images[3], whole=True)],
        [*range(200), PromptRows(images[2], whole=True), PromptRows(images[0], whole=True), *range(10)],
        list(range(40)),
        [7, *(PromptRows(images[3] + np.float32(n), whole=True) for n in range(3)), 8],
    ]
    with load(golden.model, device="cpu", n_context=1024, n_sessions=5, spec="off", rows=True) as llm:
        expected = [alone(llm, each) for each in prompts]
        assert len(set(expected)) == len(expected)
        with llm.session() as session:
            for number in (0, 1, 0, 4, 1):
                assert answer(session, prompts[number]) == expected[number]
    drafting = load(golden.model, device="cpu", n_context=1024, n_sessions=5, spec=5, rows=True)
    with drafting as llm, ThreadPoolExecutor(len(prompts)) as pool:
        assert list(pool.map(lambda each: answer(llm, each), prompts)) == expected


@pytest.mark.parametrize("family", ["gemma3-f32-whole", "gemma4-f32-whole"])
def test_layers_that_keep_a_window_give_the_same(family: str) -> None:
    """Prompts longer than what such layers keep, of which a beginning is read again where it was dropped."""
    golden = RowGolden.read(family)
    images = [PromptRows(golden.text.rows[np.arange(200) % 36] + np.float32(n), whole=True) for n in range(5)]
    long: list[Piece] = [*range(90), *images, *range(100), images[0], *range(20)]
    prompts = long, [*long[:93], 5, 6], long[:92], long
    found = []
    for n_context in (1536, 6144):
        with load(golden.model, device="cpu", n_context=n_context, spec=4, rows=True) as llm, llm.session() as session:
            assert (llm._pool.executor.limits.windows is None) == (n_context == 1536)
            found.append([answer(session, each) for each in prompts])
    assert found[0] == found[1]


def test_budgets_are_refused_where_rows_see_each_other() -> None:
    model = RowGolden.read("gemma3-f32-whole").model
    for approx in ("kv=256", "prefill=256"):
        with pytest.raises(BadSetting, match=r"gemma3 with images, whose rows see each other.* for texts alone"):
            load(model, device="cpu", n_context=512, rows=True, approx=approx)


@pytest.mark.parametrize(
    ("device", "reason"),
    [
        ("onnx", "onnx cannot run the op embed: it does not know the field rows; --device cpu runs this model$"),
        ("openvino", "openvino cannot run the op embed: it does not know the field rows"),
        ("cuda", "cuda cannot run the op embed: it does not know the field rows"),
        ("llamacpp", "llamacpp takes token ids alone"),
        ("cpu,onnx", "is opened for rows of numbers, which one device runs"),
    ],
)
def test_other_devices_refuse_rows_by_name(device: str, reason: str) -> None:
    try:
        with pytest.raises((UnsupportedModel, BadSetting), match=reason):
            load(RowGolden.read("qwen2vl-f32").model, device=device, n_context=64, rows=True)
    except DeviceUnavailable as why:
        pytest.skip(f"{device}: {why}")
