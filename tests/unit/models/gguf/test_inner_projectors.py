"""Models of Ollama's with their projector in the same file: the rows and answers of two files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import edgeinfer
from edgeinfer.engine.opening.seeing import may_see, projector_facts
from edgeinfer.errors import BadGGUF
from edgeinfer.load_options import LoadOptions
from edgeinfer.models.gguf import GGUFFile
from edgeinfer.models.images.image import Image
from edgeinfer.models.load import left_out, open_model
from edgeinfer.models.projector_file import open_projector
from tests.joined_models import MODEL, PROJECTOR, VISION, together

pytest.importorskip("PIL")


def answer(path: Path, mmproj: str = "auto") -> tuple[str, int]:
    """The answer to an image, and how many tokens its prompt has."""
    image = Image.of(np.load(VISION / "gemma3.npz")["pixels1"])
    question = [{"type": "image", "image": image}, {"type": "text", "text": "the cat"}]
    with edgeinfer.load(path, device="reference", n_context=128, spec="off", mmproj=mmproj) as llm:
        assert llm.info.reads_images
        stream = llm.chat([{"role": "user", "content": question}], max_tokens=8, temperature=0.0)
        return stream.read(), len(stream.prompt)


def test_a_model_with_its_projector_in_its_file_sees(tmp_path: Path) -> None:
    path = together(tmp_path / "model.gguf")
    assert answer(path) == answer(MODEL, str(PROJECTOR)) == answer(path, str(path))


def test_that_it_sees_is_known_before_it_is_loaded(tmp_path: Path) -> None:
    load = LoadOptions(device="reference")
    path = together(tmp_path / "model.gguf")
    assert may_see(path, load)
    with GGUFFile.open(path) as file:
        found, notices = projector_facts(path, file, load)
    assert found is not None
    assert not notices
    assert found.kind == "gemma3"


def test_its_encoder_is_that_of_the_projector_file(tmp_path: Path) -> None:
    path = together(tmp_path / "model.gguf")
    with open_projector(path) as inner, open_projector(PROJECTOR) as usual:
        assert inner.encoder.trunk == usual.encoder.trunk
        assert inner.encoder.projection == usual.encoder.projection
        assert inner.encoder.plan((5, 7)) == usual.encoder.plan((5, 7))


def test_its_answers_to_texts_need_no_projector(tmp_path: Path) -> None:
    path = together(tmp_path / "model.gguf")
    with open_model(path) as model, open_model(MODEL) as usual:
        assert model.spec == usual.spec
        assert left_out(model.spec, model.file.metadata, model.file.tensors) == ("what reads images",)
    with edgeinfer.load(path, device="reference", n_context=64, mmproj="off") as llm:
        assert not llm.info.reads_images


def test_a_projector_that_edgeinfer_cannot_run_is_said_and_texts_go_on(tmp_path: Path) -> None:
    path = together(tmp_path / "model.gguf", rows=100)
    with edgeinfer.load(path, device="reference", n_context=64) as llm:
        assert not llm.info.reads_images
        assert any("images cannot be read" in notice for notice in llm.info.notices)


def test_a_model_without_a_projector_is_none() -> None:
    with pytest.raises(BadGGUF, match="it is no projector file"):
        open_projector(MODEL)
