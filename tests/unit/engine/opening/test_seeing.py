"""With which projector a model is opened, and what is said where it is opened with none."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

import edgeinfer
from edgeinfer.engine.opening.seeing import may_see, open_seeing
from edgeinfer.errors import BadGGUF, BadSetting, EdgeInferError, ModelNotFound
from edgeinfer.load_options import LoadOptions
from tests.golden.goldens import DATA
from tests.joined_models import together

LOAD = LoadOptions(device="reference")


@pytest.fixture
def seeing(tmp_path: Path) -> Path:
    """A model with its projector beside it."""
    for name in ("idefics3.gguf", "mmproj-idefics3.gguf"):
        shutil.copy(DATA / "vision" / name, tmp_path)
    return tmp_path / "idefics3.gguf"


@pytest.mark.parametrize(
    ("named", "kind", "told"),
    [
        ("gone.gguf", ModelNotFound, "gone.gguf does not exist; mmproj is auto, off, or a projector file"),
        ("on", ModelNotFound, "on does not exist; mmproj is auto, off, or a projector file"),
        ("idefics3.gguf", BadGGUF, "idefics3.gguf is no projector file: its architecture is 'llama'; give the mmproj-"),
        ("photo.jpg", BadGGUF, "photo.jpg is not a GGUF file"),
        (
            "mmproj-qwen3vl.gguf",
            BadSetting,
            "mmproj-qwen3vl.gguf makes rows of 96 numbers, and the model reads rows of 32",
        ),
        ("mmproj-qwen2vl.gguf", BadSetting, "mmproj-qwen2vl.gguf gives three positions to each row"),
    ],
)
def test_a_file_that_is_no_projector_of_the_model_is_named(
    seeing: Path, named: str, kind: type[EdgeInferError], told: str
) -> None:
    (seeing.parent / "photo.jpg").write_bytes(b"\xff\xd8\xff" + bytes(100))
    if (DATA / "vision" / named).exists():
        shutil.copy(DATA / "vision" / named, seeing.parent)
    with pytest.raises(kind) as refused:
        open_seeing(seeing, replace(LOAD, mmproj=str(seeing.parent / named)))
    assert told in str(refused.value)


@pytest.mark.parametrize(
    ("load", "why"),
    [
        (replace(LOAD, isolate=True), "a model in this process (no --isolate)"),
        (replace(LOAD, device="null"), "the cpu (--device cpu)"),
    ],
)
def test_it_is_said_why_a_projector_is_not_used(seeing: Path, tmp_path: Path, load: LoadOptions, why: str) -> None:
    inner = together(tmp_path / "gemma.gguf")
    beside, own = "images and sound are not read with mmproj-idefics3.gguf", "images are not read with the projector in"
    for path, said in ((seeing, beside), (inner, f"{own} gemma.gguf")):
        subject, notices = open_seeing(path, load)
        with subject.file:
            assert subject.projector is None
            assert notices == (f"{said}: that takes {why}",)
            assert not may_see(path, load)
    subject, notices = open_seeing(seeing, replace(load, mmproj="off"))
    with subject.file:
        assert not notices


def test_without_a_projector_nothing_is_said(tiny_model: Path) -> None:
    with edgeinfer.load(tiny_model, device="reference") as llm:
        assert not llm.info.reads_images
        assert not any("images" in notice for notice in llm.info.notices)


def test_a_projector_in_the_models_file_is_left_out_only_where_it_is_not_used(tmp_path: Path) -> None:
    model, left = together(tmp_path / "gemma.gguf"), "left out of gemma: what reads images"
    with edgeinfer.load(model, device="reference", prefix_cache=False) as llm:
        assert llm.info.reads_images
        assert left not in llm.info.notices
    with edgeinfer.load(model, device="reference", mmproj="off") as llm:
        assert not llm.info.reads_images
        assert left in llm.info.notices
