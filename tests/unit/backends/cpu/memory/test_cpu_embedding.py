"""Rows of the embedding: those that are kept are the ones that would be decoded."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from edgeinfer.backends.base import Limits
from edgeinfer.backends.cpu.layout.padding import learned_positions
from edgeinfer.backends.cpu.memory import embedding
from edgeinfer.backends.cpu.memory.embedding import Embedding
from edgeinfer.backends.weights import matrix
from edgeinfer.graph.ops.embed import Embed
from edgeinfer.models.load import open_model
from edgeinfer.models.quants import dequantise
from tests.golden.goldens import Golden


@pytest.mark.parametrize("name", ["llama-k", "gemma2-q4_0", "qwen3-bf16", "phi3-f16", "opt-f32", "opt-k"])
@pytest.mark.parametrize("n_kept", [1, 7, 10000])
def test_rows_are_those_of_the_file(name: str, n_kept: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(embedding, "embedding_rows", lambda weight: n_kept)
    with open_model(Golden.read(name).model) as model:
        (op,) = (op for op in model.spec.ops() if isinstance(op, Embed))
        tensor = model.file.tensors[op.weight.tensor]
        table = dequantise(model.file.raw(op.weight.tensor), tensor.shape, tensor.ggml_type) * np.float32(op.scale)
        learned = learned_positions(model.spec, Limits(60, 1))
        assert (learned is None) == (not name.startswith("opt"))
        added = np.zeros((60, op.weight.columns), np.float32) if learned is None else matrix(model.file, learned)
        assert len(added) == 60
        rows = Embedding(model.file, op, learned)
        draw = np.random.default_rng(0)
        for n_tokens in (1, 1, 3, 16, 17, 40, 2, 1, 5, 16):
            tokens = draw.integers(0, min(len(table), 30), n_tokens).astype(np.int32)
            out = np.full((n_tokens + 1, op.weight.columns + 3), 7, np.float32)
            positions = draw.integers(0, 60, n_tokens).astype(np.int32)
            rows.write(tokens, positions, out)
            assert (out[:n_tokens, : op.weight.columns] == table[tokens] + added[positions]).all()
            assert (out[n_tokens] == 7).all()
            assert (out[:, op.weight.columns :] == 7).all()
