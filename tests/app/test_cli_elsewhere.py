"""Models of other programs on the command line: shown with where they are from, used and taken off the list by name."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from edgeinfer.app.catalogue.catalogue import local_entries
from edgeinfer.app.catalogue.words import detail_lines, state_word
from edgeinfer.models.store import ModelStore
from tests.app.test_cli_models import run
from tests.unit.models.test_store import write_ollama


@pytest.fixture
def blob(home: Path, tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of a model that Ollama calls llama3.2:3b."""
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path / "ollama"))
    return write_ollama(tmp_path / "ollama", "registry.ollama.ai/library/llama3.2/3b", tiny_model.read_bytes())


def test_it_is_listed_with_its_program(blob: Path, capsys: pytest.CaptureFixture[str]) -> None:
    row = run(capsys, "ls")[1].splitlines()[1].split()
    assert (row[0], row[-3:]) == ("llama3.2:3b", ["F32", "512", "Ollama"])
    (listed,) = json.loads(run(capsys, "models", "--json")[1])["models"]
    assert (listed["name"], listed["source"], listed["from"]) == ("llama3.2:3b", "ollama:llama3.2:3b", "Ollama")
    assert "llama3.2:3b" in run(capsys, "models")[1]
    assert json.loads(run(capsys, "show", "llama3.2:3b", "--json")[1])["paths"] == [str(blob)]


@pytest.mark.parametrize("name", ["llama3.2:3b", "llama3.2", "ollama:llama3.2:3b"])
def test_it_answers_by_its_name(
    blob: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO()))
    answer = ("run", "-m", name, "--device", "reference", "--max-tokens", "2", "--json", "hi")
    assert json.loads(run(capsys, *answer)[1])["model"] == "llama3.2:3b"
    assert ModelStore().remembered() == ("llama3.2:3b",)
    assert not [path for path in ModelStore().root.iterdir() if path.suffix == ".json"]


def test_a_mistyped_tag_is_told_the_nearest_name(blob: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "tokenize", "-m", "llama3.2:33b", "hi")
    assert code == 1
    assert "did you mean llama3.2:3b?" in err


def test_it_is_taken_off_the_list_without_a_question(blob: Path, capsys: pytest.CaptureFixture[str]) -> None:
    expected = f"llama3.2:3b removed from the list; the file stays at {blob}\n"
    assert run(capsys, "rm", "llama3.2") == (0, expected, "")
    assert blob.exists()
    assert json.loads(run(capsys, "ls", "--json")[1]) == {"models": []}


def test_the_catalogue_marks_it(blob: Path) -> None:
    (entry,) = local_entries(ModelStore())
    assert (entry.name, entry.architecture, entry.quant) == ("llama3.2:3b", "llama", "F32")
    assert state_word(entry, None, None) == "Ollama"
    assert detail_lines(entry, None)[0] == "llama3.2:3b from Ollama: ollama:llama3.2:3b"
