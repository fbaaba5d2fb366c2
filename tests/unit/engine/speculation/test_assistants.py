"""Gemma 4's assistants: they change no answer, follow every turn of a text, and say what does not fit."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from edgeinfer.engine.llm import LLM
from edgeinfer.engine.loading import load
from edgeinfer.engine.speculation.draft_model import FollowedText
from edgeinfer.engine.speculation.head_model import Head
from edgeinfer.errors import BadGGUF, BadSetting, UnsupportedModel
from edgeinfer.graph.step import Batch, Floats
from tests.golden.goldens import DATA
from tests.head_files import write_assistant, write_sure_assistant
from tests.unit.engine.speculation.test_heads import OPTIONS, stats_of, turns

CONVERTED = DATA / "converted"
GEMMA, SMALL = CONVERTED / "gemma4-bf16.gguf", CONVERTED / "gemma4-small-bf16.gguf"
MIXTURE, LLAMA = CONVERTED / "gemma4-moe-bf16.gguf", CONVERTED / "llama-bf16.gguf"
TEXTS = ("the rain", "in the inn and in", "another heat", "then")


def head_of(llm: LLM) -> Head:
    """The assistant of an open model."""
    assert llm.drafts is not None
    assert isinstance(llm.drafts.draft_model, Head)
    return llm.drafts.draft_model


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("model", [GEMMA, SMALL, MIXTURE], ids=lambda path: path.stem)
def test_no_assistant_changes_an_answer(model: Path, options: dict[str, Any], tmp_path: Path, home: Path) -> None:
    head = write_assistant(model, tmp_path / "head.gguf", seed=5)
    with load(model, threads=1, spec="off", n_context=512) as llm:
        plain = turns(llm, options)
    for spec in ("on", 2, 8):
        with load(model, threads=1, spec=spec, n_context=512, draft_from=[head]) as llm:  # type: ignore[arg-type]
            assert turns(llm, options) == plain
            assert head_of(llm).n_passes > (0 if spec == "on" else 30)  # the first weighs what drafts cost


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("parallel", [2, 4])
def test_no_assistant_changes_a_batch_and_all_answers_share_its_passes(
    parallel: int, options: dict[str, Any], tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    head = write_assistant(GEMMA, tmp_path / "head.gguf")
    plain: list[tuple[int, ...]] = []
    with load(GEMMA, threads=1, spec="off", n_context=128) as llm:
        for text in TEXTS:
            stream = llm.complete(text, max_tokens=40, **options)
            stream.read()
            plain.append(stream.tokens)
    with load(GEMMA, threads=1, spec=6, n_context=128, n_sessions=4, draft_from=[head]) as llm:
        executor, ran = head_of(llm)._pool.executor, list[int]()
        evaluate = executor.evaluate

        def counting(batch: Batch) -> Floats:
            ran.append(len(set(batch.sequences.tolist())))
            return evaluate(batch)

        monkeypatch.setattr(executor, "evaluate", counting)
        found = {each.number: each for each in llm.batch(TEXTS, parallel=parallel, max_tokens=40, **options)}
    assert [found[number].tokens for number in range(len(TEXTS))] == plain
    assert max(ran) == parallel


def test_an_assistant_that_knows_the_model_is_always_right(tmp_path: Path, home: Path) -> None:
    model, head = write_sure_assistant(GEMMA, tmp_path)
    with load(model, threads=1, spec=5, n_context=512, draft_from=[head]) as llm:
        for prompt in ("the rain in the inn", "the rain in the inn " * 25):
            stats = stats_of(llm.complete(prompt, max_tokens=60, temperature=0))
            assert stats.draft is not None
            assert stats.draft.sources["trained_head"].accepted >= 1
            assert stats.accepted_per_step > 3


def guesses(llm: LLM, prompts: list[str]) -> dict[tuple[int, ...], list[float]]:
    """What a session's assistant computes first for the next token, by the text so far; for some prompts in turn."""
    found: dict[tuple[int, ...], list[float]] = {}
    head, last = head_of(llm), list[Floats]()
    evaluate, read = head._pool.executor.evaluate, head.read

    def noting(batch: Batch) -> Floats:
        last[:] = [evaluate(batch)]
        return last[0]

    def reading(texts: Sequence[FollowedText], ahead: Sequence[Sequence[int]]) -> list[int | None]:
        tokens = read(texts, ahead)
        found[tuple(texts[0].history)] = last[0][0].tolist()
        return tokens

    with llm.session() as session, pytest.MonkeyPatch.context() as patch:
        patch.setattr(head._pool.executor, "evaluate", noting)
        patch.setattr(head, "read", reading)
        for prompt in prompts:
            found.clear()
            session.complete(prompt, max_tokens=40, temperature=0).read()
    return found


def test_a_guess_depends_on_the_text_alone_and_not_on_how_it_came_about(tmp_path: Path, home: Path) -> None:
    """Passes that accept more or fewer tokens and texts that go back guess the same."""
    head, last = write_assistant(GEMMA, tmp_path / "head.gguf"), "the rain in the inn and the"
    with load(GEMMA, threads=1, spec=2, n_context=256, draft_from=[head]) as llm:
        wanted = guesses(llm, [last])
    with load(GEMMA, threads=1, spec=8, n_context=256, draft_from=[head]) as llm:
        for before in ([], ["the rain in the", f"{last} rain and more"], ["another heat in the inn"], [last, last]):
            found = guesses(llm, [*before, last])
            same = found.keys() & wanted.keys()
            assert len(same) > 1
            assert all(found[text] == wanted[text] for text in same)
            assert len({tuple(found[text]) for text in same}) == len(same)


def test_what_a_session_has_is_given_back(tmp_path: Path, home: Path) -> None:
    head = write_assistant(GEMMA, tmp_path / "head.gguf")
    with load(GEMMA, threads=1, spec=4, n_context=256, draft_from=[head]) as llm:
        executor, own = llm._pool.executor, head_of(llm)._pool.executor
        assert own.resident_bytes > 0
        n_free = executor.n_free_pages
        for _ in range(3):
            with llm.session() as session:
                session.complete("the rain", max_tokens=12, temperature=0).read()
        assert executor.n_free_pages == n_free
    assert own.resident_bytes == 0


def test_assistants_of_other_models_are_refused(tmp_path: Path, home: Path) -> None:
    head = write_assistant(GEMMA, tmp_path / "head.gguf")
    wide = write_assistant(GEMMA, tmp_path / "wide.gguf", given=64)
    windows = write_assistant(GEMMA, tmp_path / "windows.gguf", window=40)
    for model, file, message in (
        (LLAMA, head, "it is of a gemma4, and the model is a llama"),
        (GEMMA, wide, "hidden rows of 64 numbers, and the model has 32"),
        (GEMMA, windows, "40 positions in layers with a window, the model to 12"),
        (SMALL, head, "keys of 1 heads of 32 numbers in layers without a window, and the model has 2 heads of 32"),
    ):
        with pytest.raises(BadSetting, match=message):
            load(model, threads=1, spec=4, draft_from=[file])
    with pytest.raises(BadGGUF, match="windows of 1 position"):
        load(GEMMA, threads=1, spec=4, draft_from=[write_assistant(GEMMA, tmp_path / "narrow.gguf", window=1)])
    with pytest.raises(UnsupportedModel, match=r"open that one, and name this file with --draft-from$"):
        load(head, threads=1)  # no other program is offered or tried
