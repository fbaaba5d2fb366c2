"""Trained heads in files of their own: EAGLE-3, and MTP blocks split from their model; what does not fit says so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from edgeinfer.engine.loading import load
from edgeinfer.engine.speculation.head_model import Head
from edgeinfer.errors import BadGGUF, BadSetting, UnsupportedModel
from edgeinfer.models.gguf import GGUFFile
from tests.golden.goldens import DATA
from tests.head_files import write_apart, write_eagle, write_sure_head, write_with_head

LLAMA, QWEN = (DATA / "converted" / f"{name}-bf16.gguf" for name in ("llama", "qwen35"))
OPTIONS: list[dict[str, Any]] = [{"temperature": 0}, {"temperature": 0.8, "top_p": 0.95, "seed": 3}]
PROMPT = "the rain in the inn and the rain"


def answers(model: Path, options: dict[str, Any], **how: Any) -> tuple[list[tuple[int, ...]], int]:
    """Tokens of two turns of a session, and how many tokens a head drafted."""
    with load(model, threads=1, n_context=256, **how) as llm, llm.session() as session:
        found: list[tuple[int, ...]] = []
        n_drafted = 0
        for prompt in (PROMPT, PROMPT[:12]):
            stream = session.complete(prompt, max_tokens=50, **options)
            stream.read()
            found.append(stream.tokens)
            assert stream.stats is not None
            if stream.stats.draft is not None and "trained_head" in stream.stats.draft.sources:
                n_drafted += stream.stats.draft.sources["trained_head"].proposed
        return found, n_drafted


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("embeds", [True, False])
@pytest.mark.parametrize("model", [LLAMA, QWEN])
def test_no_eagle_changes_an_answer(
    model: Path, embeds: bool, options: dict[str, Any], tmp_path: Path, home: Path
) -> None:
    head = write_eagle(tmp_path / "eagle.gguf", vocabulary=320, own=150, embeds=embeds)
    plain, _ = answers(model, options, spec="off")
    drafted, n_drafted = answers(model, options, spec=6, draft_from=[head])
    assert drafted == plain
    assert n_drafted > 10


@pytest.mark.parametrize("options", OPTIONS)
def test_a_head_split_from_its_model_drafts_as_it_does_inside(
    options: dict[str, Any], tmp_path: Path, home: Path
) -> None:
    whole = write_sure_head(QWEN, tmp_path / "whole.gguf")
    head = write_apart(whole, tmp_path / "mtp-whole.gguf")
    inside, n_inside = answers(whole, options, spec=6)
    beside, n_beside = answers(whole, options, spec=6, draft_from=[head])
    assert beside == inside
    assert n_beside == n_inside > 0


def test_the_guesses_of_an_eagle_are_tokens_of_the_model(tmp_path: Path, home: Path) -> None:
    head = write_eagle(tmp_path / "eagle.gguf", vocabulary=320, own=150)
    with load(LLAMA, threads=1, n_context=256, spec=6, draft_from=[head]) as llm:
        opened = llm.drafts.draft_model if llm.drafts else None
        assert isinstance(opened, Head)
        known = set(opened._tokens.tolist())
        assert len(known) == 150
        assert max(known) > 150
        with llm.session() as session:
            session.complete(PROMPT, max_tokens=12, temperature=0).read()
            speculator = session.speculator
            assert speculator is not None
            chain = speculator._chain
            assert chain is not None
            assert set(chain._tokens[: chain.n_rows].tolist()) <= known


def test_heads_of_other_models_are_refused(tmp_path: Path, home: Path) -> None:
    other = write_apart(write_with_head(QWEN, tmp_path / "q.gguf"), tmp_path / "mtp-q.gguf")
    wide = write_eagle(tmp_path / "wide.gguf", target=64)
    deep = write_eagle(tmp_path / "deep.gguf", layers=(0, 1, 90))
    many = write_eagle(tmp_path / "many.gguf", vocabulary=2000, own=900)
    short = write_eagle(tmp_path / "short.gguf", vocabulary=264, own=150)
    for head, message in (
        (short, "has rows for 264 tokens, and the model has 320"),
        (other, "is of a qwen35, and the model is a llama"),
        (wide, "hidden rows of 64 numbers, and the model has 32"),
        (deep, "layer 90, and the model has 2 layers"),
    ):
        with pytest.raises(BadSetting, match=message):
            load(LLAMA, threads=1, spec=4, draft_from=[head])
    with pytest.raises(BadGGUF, match="tokens beyond the 320"):
        load(LLAMA, threads=1, spec=4, draft_from=[many])


def test_a_head_that_the_options_leave_no_use_for_says_why(tmp_path: Path, home: Path) -> None:
    head = write_eagle(tmp_path / "eagle.gguf", vocabulary=320, own=150)
    with pytest.raises(BadSetting, match="drafts with --device cpu"):
        load(LLAMA, threads=1, spec=4, draft_from=[head], approx=0.01)
    with load(LLAMA, threads=1, spec="off", draft_from=[head]) as llm:
        assert llm.drafts is None
    with pytest.raises(UnsupportedModel, match=r"open that one, and name this file with --draft-from"):
        load(head, threads=1)


def test_a_head_that_nothing_is_drafted_with_is_not_left_open(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a device whose logits depend on the batch, nothing is drafted unless it is asked for."""
    head, closed, close = write_eagle(tmp_path / "eagle.gguf", vocabulary=320, own=150), set[Path](), GGUFFile.close

    def noted(file: GGUFFile) -> None:
        closed.add(file.path)
        close(file)

    monkeypatch.setattr(GGUFFile, "close", noted)
    with load(LLAMA, device="reference", n_context=64, draft_from=[head]) as llm:
        assert llm.drafts is None
        assert closed == {head}
