"""What files say of axes, and models that are opened for rows of numbers."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest

from edgeinfer.errors import BadGGUF, UnsupportedModel
from edgeinfer.graph.ops.rope import Rope
from edgeinfer.graph.rotary import RopeSections
from edgeinfer.graph.step import IDS_ONLY, Inputs
from edgeinfer.models.architectures import architecture_of
from edgeinfer.models.gguf import GGUFFile
from edgeinfer.models.hyperparameters import Hyperparameters
from edgeinfer.models.load import open_model
from edgeinfer.models.variants import with_rows
from tests.golden.goldens import DATA

MODEL = DATA / "qwen3-f32.gguf"
"""Heads of 16, without sections."""


def sections_of(path: Path, *, rows: bool = True) -> set[RopeSections | None]:
    with open_model(path, rows=rows) as model:
        return {op.sections for op in model.spec.ops() if isinstance(op, Rope)}


def written(folder: Path, key: str, value: object) -> Path:
    """A header alone, of a file with that value."""
    writer = gguf.GGUFWriter(folder / "header.gguf", "qwen3")
    if isinstance(value, list):
        writer.add_array(key, value)
    else:
        writer.add_string(key, str(value))
    writer.add_tensor("none", np.zeros(1, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return folder / "header.gguf"


def test_axes_are_laid_out_as_the_family_has_them() -> None:
    assert sections_of(DATA / "rows" / "qwen2vl-f32.gguf") == {RopeSections(4, 2, 2)}
    assert sections_of(DATA / "rows" / "qwen3vl-f32.gguf") == {RopeSections(4, 2, 2, interleaved=True)}
    assert sections_of(DATA / "qwen35-f32.gguf") == {RopeSections(2, 1, 1, interleaved=True)}
    assert sections_of(MODEL) == {None}


def test_models_are_opened_for_ids_alone_unless_rows_are_asked_for() -> None:
    assert sections_of(DATA / "rows" / "qwen2vl-f32.gguf", rows=False) == {None}
    for rows, inputs in ((False, IDS_ONLY), (True, Inputs(32))):
        with open_model(MODEL, rows=rows) as model:
            assert model.spec.inputs == inputs


@pytest.mark.parametrize(
    ("sections", "axes"), [([2, 3, 3], [0, 1, 2, 0, 1, 2, 0, 1]), ([8, 1, 1], [0, 1, 2] + [0] * 7)]
)
def test_pairs_that_no_axis_takes_in_turns_are_temporal(sections: list[int], axes: list[int]) -> None:
    """[2, 3, 3]: the last of the width would be pair 8, which there is not, as in transformers."""
    assert RopeSections(*sections, interleaved=True).axes().tolist() == axes


@pytest.mark.parametrize(
    ("value", "error", "reason"),
    [
        ([4, 2, 1, 0], BadGGUF, "7 pairs in all; the heads of the file have 8"),
        ([4, 2], BadGGUF, "three or four"),
        ([1.0, 2.0, 5.0], BadGGUF, "three or four whole numbers"),
        ([4, 8, -4, 0], BadGGUF, "below zero"),
        ([2, 2, 2, 2], UnsupportedModel, "a fourth axis"),
        ("twelve", BadGGUF, "three or four"),
    ],
)
def test_sections_that_cannot_be_are_refused(
    value: object, error: type[Exception], reason: str, tmp_path: Path
) -> None:
    with open_model(MODEL) as model, GGUFFile.open(written(tmp_path, "qwen3.rope.dimension_sections", value)) as header:
        hp = Hyperparameters(header.metadata, model.file.tensors, 64)
        with pytest.raises(error, match=reason):
            with_rows(model.spec, hp, architecture_of("qwen3").axes)


@pytest.mark.parametrize("value", [[8, 0, 0, 0], [0, 0, 0]])
def test_one_axis_is_a_plain_embedding(value: list[int], tmp_path: Path) -> None:
    with open_model(MODEL) as model, GGUFFile.open(written(tmp_path, "qwen3.rope.dimension_sections", value)) as header:
        found = with_rows(model.spec, Hyperparameters(header.metadata, model.file.tensors, 64), "interleaved")
        assert found.inputs == Inputs(32)


def test_a_family_whose_order_of_axes_is_not_known_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path, "qwen3.rope.dimension_sections", [4, 2, 2])
    with open_model(MODEL) as model, GGUFFile.open(path) as header:
        hp = Hyperparameters(header.metadata, model.file.tensors, 64)
        with pytest.raises(UnsupportedModel, match=r"whose order edgeinfer does not know; load it without rows=True"):
            with_rows(model.spec, hp, None)
