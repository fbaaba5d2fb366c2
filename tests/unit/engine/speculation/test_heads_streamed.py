"""Trained heads beside models of which a part is read from disk: they draft, or it is said what would work."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from edgeinfer.engine.llm import LLM
from edgeinfer.engine.loading import load
from edgeinfer.text_values import size_in_bytes
from tests.golden.goldens import DATA
from tests.head_files import write_apart, write_assistant, write_deep, write_eagle, write_with_head

LLAMA, QWEN, GEMMA = (DATA / "converted" / f"{name}-bf16.gguf" for name in ("llama", "qwen35", "gemma4"))
OPTIONS: list[dict[str, Any]] = [{"temperature": 0}, {"temperature": 0.8, "top_p": 0.95, "seed": 3}]
COMMON: dict[str, Any] = {"device": "cpu", "threads": 1, "n_context": 256}
TEXTS = ("the rain in the inn and the rain", "the rain in")


def files_of(kind: str, folder: Path) -> tuple[Path, list[Path]]:
    """A model that takes more memory than its head, and the head's file if that is another one."""
    if kind == "eagle":
        return write_deep(LLAMA, folder / "llama.gguf", 160), [write_eagle(folder / "head.gguf", vocabulary=320)]
    if kind == "assistant":
        return write_deep(GEMMA, folder / "gemma.gguf", 30), [write_assistant(GEMMA, folder / "head.gguf")]
    model = write_deep(write_with_head(QWEN, folder / "one.gguf"), folder / "qwen.gguf", 30)
    return model, [] if kind == "inside" else [write_apart(model, folder / "head.gguf")]


def answers(llm: LLM) -> list[tuple[int, ...]]:
    """Tokens of two turns, once the likeliest and once drawn."""
    found: list[tuple[int, ...]] = []
    for options in OPTIONS:
        with llm.session() as session:
            for text in TEXTS:
                stream = session.complete(text, max_tokens=20, **options)
                stream.read()
                found.append(stream.tokens)
    return found


def is_streamed(llm: LLM) -> bool:
    """Whether a part of the weights is read from disk."""
    return llm.telemetry.limits.stored is not None


@pytest.mark.parametrize("kind", ["inside", "apart", "eagle", "assistant"])
def test_a_head_drafts_for_a_model_that_is_read_from_disk(kind: str, tmp_path: Path, home: Path) -> None:
    model, sources = files_of(kind, tmp_path)
    with load(model, spec="off", **COMMON) as llm:
        assert llm.info.need is not None
        plain, whole = answers(llm), llm.info.need.weight_bytes
    with load(model, spec=6, ram_bytes=whole // 8, draft_from=sources, **COMMON) as llm:
        told = " ".join(llm.info.notices)
        assert answers(llm) == plain
        assert is_streamed(llm)
        assert llm.drafts is not None
        assert llm.drafts.draft_model is None
    found = re.search(r"nothing is drafted by .*; --ram (\S+) would have room for both", told)
    assert found is not None, told
    ram_bytes = size_in_bytes(found.group(1), 0)
    assert whole // 8 < ram_bytes < whole
    with load(model, spec=6, ram_bytes=ram_bytes, draft_from=sources, **COMMON) as llm:
        assert not [notice for notice in llm.info.notices if "nothing is drafted" in notice]
        assert answers(llm) == plain
        assert is_streamed(llm)
        assert llm.drafts is not None
        assert llm.drafts.draft_model is not None
        assert llm.drafts.draft_model.n_passes > 20
