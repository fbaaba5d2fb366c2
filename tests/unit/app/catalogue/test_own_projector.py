"""Models that read images are marked wherever models are listed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from edgeinfer.app.catalogue.catalogue import local_entries
from edgeinfer.app.catalogue.own_projector import own_projector
from edgeinfer.app.catalogue.words import detail_lines, name_word
from edgeinfer.app.cli import main
from edgeinfer.models.store import ModelStore
from edgeinfer.text_values import size_text
from tests.golden.goldens import DATA
from tests.joined_models import together

MODEL, PROJECTOR = DATA / "vision" / "idefics3.gguf", DATA / "vision" / "mmproj-idefics3.gguf"
SIZE = size_text(PROJECTOR.stat().st_size)


@pytest.fixture
def models(home: Path) -> Path:
    """A folder with a model that sees, and one that does not."""
    folder = home / "models"
    folder.mkdir(parents=True)
    shutil.copy(MODEL, folder)
    shutil.copy(PROJECTOR, folder)
    shutil.copy(MODEL, folder / "blind.gguf")
    return folder


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as left:
        main(list(arguments))
    assert not left.value.code
    return capsys.readouterr().out


def test_a_projector_beside_a_model_is_described(models: Path) -> None:
    found = own_projector(models / "idefics3.gguf")
    assert found is not None
    assert (found.path, found.kind, found.reads_images) == (models / PROJECTOR.name, "idefics3", True)
    assert found.text == f"with mmproj-idefics3.gguf (idefics3, {SIZE})"
    assert own_projector(models / "blind.gguf") is None


def test_a_projector_that_cannot_be_used_says_why(models: Path) -> None:
    data = bytearray(PROJECTOR.read_bytes())
    (models / PROJECTOR.name).write_bytes(data.replace(b"\x08\0\0\0\0\0\0\0idefics3", b"\x08\0\0\0\0\0\0\0unknown3"))
    found = own_projector(models / "idefics3.gguf")
    assert found is not None
    assert not found.reads_images
    assert found.text.startswith(f"not with mmproj-idefics3.gguf ({SIZE}): the projector's type is 'unknown3'")


def test_a_projector_in_the_models_own_file_is_described(tmp_path: Path) -> None:
    path = together(tmp_path / "gemma.gguf")
    found = own_projector(path)
    assert found is not None
    assert (found.path, found.kind, found.reads_images) == (path, "gemma3", True)
    assert 0 < found.nbytes < path.stat().st_size
    assert found.text == f"with the projector in its own file (gemma3, {size_text(found.nbytes)})"
    assert own_projector(Path(shutil.copy(DATA / "vision" / "gemma3.gguf", tmp_path))) is None


def test_one_in_the_models_own_file_that_cannot_be_used_says_why(tmp_path: Path) -> None:
    found = own_projector(together(tmp_path / "gemma.gguf", rows=100))
    assert found is not None
    assert not found.reads_images
    assert found.text.startswith("not with the projector in its own file (gemma3, ")


def test_lists_mark_models_that_read_images(models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    listed = json.loads(printed(capsys, "models", "--json"))["models"]
    assert {model["name"]: model["reads_images"] for model in listed} == {"blind": False, "idefics3": True}
    rows = {line.split()[0]: line.split() for line in printed(capsys, "models").splitlines()}
    assert "yes" in rows["idefics3"]
    assert "yes" not in rows["blind"]


def test_show_names_the_projector(models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record = json.loads(printed(capsys, "show", "idefics3", "--json"))
    assert record["reads_images"] is True
    assert record["projector"]["path"] == str(models / PROJECTOR.name)
    assert record["projector"]["size_bytes"] == PROJECTOR.stat().st_size
    assert record["projector"]["type"] == "idefics3"
    lines = printed(capsys, "show", "idefics3").splitlines()
    assert any(line.split() == f"reads images with mmproj-idefics3.gguf (idefics3, {SIZE})".split() for line in lines)
    assert json.loads(printed(capsys, "show", "blind", "--json"))["projector"] is None
    assert "reads images" not in printed(capsys, "show", "blind")


def test_the_models_screen_marks_them(models: Path) -> None:
    entries = {entry.name: entry for entry in local_entries(ModelStore())}
    assert name_word(entries["idefics3"]) == "idefics3 + images"
    assert name_word(entries["blind"]) == "blind"


def test_their_details_name_the_projector(models: Path) -> None:
    from edgeinfer.app.catalogue.catalogue import Catalogue

    with Catalogue(ModelStore()) as catalogue:
        (entry,) = [entry for entry in catalogue.entries() if entry.name == "idefics3"]
        lines = detail_lines(entry, catalogue.forecast(entry, 256))
    assert f"reads images with mmproj-idefics3.gguf (idefics3, {SIZE})" in lines


def test_a_model_that_hears_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str], home: Path) -> None:
    sounds = DATA / "sounds"
    for name, new in (("qwen2a.gguf", "hearing.gguf"), ("mmproj-qwen2a.gguf", "mmproj-hearing.gguf")):
        shutil.copy(sounds / name, tmp_path / new)
    path = str(tmp_path / "hearing.gguf")
    record = json.loads(printed(capsys, "show", path, "--json"))
    assert (record["reads_images"], record["reads_sound"]) == (False, True)
    assert any(line.startswith("reads sound") for line in printed(capsys, "show", path).splitlines())
