"""The architecture of `docs/ADDING.md` is one: a Llama that is called by its name answers as a Llama."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest

from edgeinfer.engine.loading import load
from edgeinfer.errors import UnsupportedModel
from edgeinfer.models.architectures import ARCHITECTURES
from tests.docs.code_blocks import ROOT, blocks_of

NAME, OF_THE_SAME_LENGTH = "stork", "llama"
PROMPT = "the rain in the tin"


@pytest.fixture
def stork(tiny_model: Path, tmp_path: Path) -> Path:
    """The tiny Llama under the other family's name."""
    path = tmp_path / "stork.gguf"
    path.write_bytes(tiny_model.read_bytes().replace(OF_THE_SAME_LENGTH.encode(), NAME.encode()))
    return path


@pytest.fixture
def _added(monkeypatch: pytest.MonkeyPatch) -> None:
    """The file of the page is in the folder of architectures."""
    (code,) = [block.text for block in blocks_of(ROOT / "docs" / "ADDING.md") if block.text.startswith('"""Stork')]
    module = ModuleType(f"edgeinfer.models.architectures.{NAME}")
    exec(compile(code, "ADDING.md", "exec"), vars(module))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(ARCHITECTURES, "_own", sorted([*ARCHITECTURES.keys(), NAME]))


def answer(path: Path, device: str) -> list[int]:
    with load(path, device=device) as llm:
        stream = llm.complete(PROMPT, temperature=0, max_tokens=12)
        stream.read()
        return list(stream.tokens)


@pytest.mark.usefixtures("_added", "home")
@pytest.mark.parametrize("device", ["reference", "cpu"])
def test_it_answers_as_a_llama(stork: Path, tiny_model: Path, device: str) -> None:
    assert answer(stork, device) == answer(tiny_model, device)


@pytest.mark.usefixtures("home")
def test_it_is_refused_by_name_before(stork: Path) -> None:
    with pytest.raises(UnsupportedModel, match="the model's architecture is 'stork'; edgeinfer has: afmoe"):
        load(stork, device="reference")
