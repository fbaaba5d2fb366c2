"""DeepSeek-V3.2 and GLM 5 open for contexts in which their sparse attention is full attention, and for no longer ones.

`test_converted` compares their logits with those of transformers.
"""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest

from edgeinfer.engine.loading import load
from edgeinfer.errors import BadGGUF, BadSetting, UnsupportedModel
from edgeinfer.models.load import open_model
from tests.golden.goldens import DATA
from tests.unit.models.test_other_names import rewritten

NAMES = ("deepseek32", "glm-dsa")
TOP_K, TRAINED = 256, 512


def file_of(name: str) -> Path:
    return DATA / "converted" / f"{name}-bf16.gguf"


@pytest.mark.parametrize("name", NAMES)
def test_contexts_end_where_positions_would_be_chosen(name: str) -> None:
    with open_model(file_of(name)) as model:
        assert (model.spec.n_context_trained, model.spec.n_context_most) == (TRAINED, TOP_K)
    with load(file_of(name), device="reference") as llm:
        assert llm.info.n_context == TOP_K
    for longer in (TOP_K + 1, TRAINED):
        with pytest.raises(BadSetting, match=f"attend to {TOP_K} positions at most, .*; choose {TOP_K} or less"):
            open_model(file_of(name), longer)


def test_an_indexer_of_another_family_is_refused(tmp_path: Path) -> None:
    """DeepSeek-V3 has none: a file with one under its name is another model."""
    path = rewritten(file_of("deepseek32"), tmp_path / "other.gguf", "deepseek2")
    with pytest.raises(UnsupportedModel, match=r"indexer\..* does not use"):
        open_model(path)


def test_a_file_that_does_not_say_how_many_positions_is_refused(tmp_path: Path) -> None:
    def index(writer: gguf.GGUFWriter) -> None:
        writer.add_tensor("blk.0.indexer.k_norm.weight", np.ones(32, np.float32))

    path = rewritten(DATA / "converted" / "deepseek2-lite-bf16.gguf", tmp_path / "other.gguf", "deepseek32", index)
    with pytest.raises(BadGGUF, match=r"indexer\.top_k"):
        open_model(path)
