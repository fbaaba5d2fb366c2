"""Which projector file belongs to a model, by the names that publishers give them."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgeinfer.models.model_projectors import projectors_of
from edgeinfer.models.projector_choice import is_projector_name, own_name, projector_in
from tests.unit.models.test_ollama_params import LIBRARY, with_params


@pytest.mark.parametrize(
    ("name", "own"),
    [
        ("mmproj-F16.gguf", ""),
        ("mmproj-model-f16.gguf", ""),
        ("mmproj.gguf", ""),
        ("mmproj-SmolVLM-256M-Instruct-Q8_0.gguf", "smolvlm-256m-instruct"),
        ("gemma-3-4b-it-mmproj-f16.gguf", "gemma-3-4b-it"),
        ("m.mmproj-q8_0.gguf", "m"),
    ],
)
def test_names_of_projectors(name: str, own: str) -> None:
    assert is_projector_name(name)
    assert own_name(name) == own
    assert not is_projector_name(name.replace("mmproj", "model"))


def test_a_projector_with_the_models_name_is_the_models(tmp_path: Path) -> None:
    names = ("a-4b-Q4_K_M.gguf", "a-4b-Q8_0.gguf", "b-2b-Q4_0.gguf", "mmproj-a-4b-Q8_0.gguf", "mmproj-a-4b-F16.gguf")
    for name in (*names, "mmproj-b-2b-F16.gguf", "mmproj-F16.gguf"):
        (tmp_path / name).touch()
    assert [path.name for path in projectors_of(tmp_path / names[0])] == ["mmproj-a-4b-F16.gguf", names[3]]
    assert [path.name for path in projectors_of(tmp_path / names[2])] == ["mmproj-b-2b-F16.gguf"]


def test_one_without_a_name_belongs_to_the_only_model(tmp_path: Path) -> None:
    for name in ("a-4b-Q4_K_M.gguf", "a-4b-Q8_0.gguf", "mmproj-BF16.gguf", "mmproj-F16.gguf"):
        (tmp_path / name).touch()
    path = tmp_path / "a-4b-Q8_0.gguf"
    assert [each.name for each in projectors_of(path)] == ["mmproj-F16.gguf", "mmproj-BF16.gguf"]
    (tmp_path / "other.gguf").touch()
    assert projectors_of(path) == []
    assert projectors_of(tmp_path / "nowhere" / "a.gguf") == []


def test_the_projector_of_a_name_of_ollamas(tmp_path: Path) -> None:
    blob = with_params(tmp_path, f"{LIBRARY}/seer/4b", b"model", {}, projector=b"projector")
    (found,) = projectors_of(blob)
    assert found.read_bytes() == b"projector"
    assert projectors_of(with_params(tmp_path, f"{LIBRARY}/blind/4b", b"another", {})) == []


def test_the_projector_in_a_repository() -> None:
    flat = ["a-Q4_K_M.gguf", "a-Q8_0.gguf", "mmproj-a-Q8_0.gguf", "mmproj-a-f16.gguf", "README.md"]
    assert projector_in(flat, "a-Q8_0.gguf") == "mmproj-a-f16.gguf"
    assert projector_in(["Q8_0/a-Q8_0.gguf", "mmproj-F16.gguf"], "Q8_0/a-Q8_0.gguf") == "mmproj-F16.gguf"
    assert projector_in(["Q8_0/a-Q8_0.gguf", "Q8_0/mmproj-F32.gguf", "mmproj-F16.gguf"], "Q8_0/a-Q8_0.gguf") == (
        "Q8_0/mmproj-F32.gguf"
    )
    assert projector_in(["a.gguf", "b.gguf", "mmproj-b.gguf"], "a.gguf") is None
