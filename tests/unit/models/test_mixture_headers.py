"""Llama 4, Laguna, Cohere 2 MoE, Grok, Nemotron Puzzle, Mistral 4: what their headers say, and what is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from edgeinfer.errors import BadGGUF, UnsupportedModel
from edgeinfer.graph.ops.attention import Attention
from edgeinfer.graph.ops.experts import Experts
from edgeinfer.graph.ops.gated_act import GatedAct
from edgeinfer.graph.ops.gated_heads import GatedHeads
from edgeinfer.graph.ops.rms_norm import RMSNorm
from edgeinfer.graph.ops.rope import Rope
from edgeinfer.graph.ops.router import Router
from edgeinfer.models.load import open_model
from edgeinfer.models.rope import rotations, still_table
from tests.golden.goldens import DATA
from tests.unit.models.test_hostile_keys import spec_with

CONVERTED = DATA / "converted"


def test_contexts_below_a_chunk_need_neither_chunks_nor_growth() -> None:
    for n_context, chunks, growing in ((8191, set(), False), (8192, set(), True), (8193, {8192}, True)):
        with open_model(CONVERTED / "llama4-bf16.gguf", n_context) as model:
            ops = list(model.spec.ops())
        attends = [op for op in ops if isinstance(op, Attention)]
        assert {op.window for op in attends if op.window is not None} == chunks
        assert {op.chunked for op in attends} == ({True, False} if chunks else {False})
        assert any(isinstance(op, Rope) and op.table.growth > 0 for op in ops) == growing


def test_three_of_four_layers_of_llama4_are_rotated_and_normed() -> None:
    with open_model(CONVERTED / "llama4-bf16.gguf") as model:
        stages = [stage.ops for stage in model.spec.stages if stage.name.startswith("blk")]
    assert [sum(isinstance(op, Rope) for op in ops) for ops in stages] == [2, 2, 2, 0, 2]
    bare = [sum(isinstance(op, RMSNorm) and op.weight is None for op in ops) for ops in stages]
    assert bare == [2, 2, 2, 0, 2]


def test_every_second_layer_has_experts_if_the_file_says_so() -> None:
    with open_model(DATA / "llama4-f32.gguf") as model:
        found = [any(isinstance(op, Experts) for op in stage.ops) for stage in model.spec.stages]
    assert found == [False, False, True, False, True, False]


def test_queries_that_are_not_rotated_only_grow() -> None:
    cosines, sines = rotations(still_table(8, 0.1, 8192, start=1), 8193, first=8190)
    assert cosines.shape == (3, 4)
    np.testing.assert_allclose(cosines[:, 0], [1.0, 1.0 + 0.1 * np.log(2), 1.0 + 0.1 * np.log(2)], rtol=1e-6)
    assert not sines.any()
    with pytest.raises(UnsupportedModel, match="9 wide"):
        still_table(9, 0.1, 8192)


def test_latent_queries_grow_only_beyond_the_original_context() -> None:
    for n_context, grows in ((32, False), (33, True)):
        with open_model(DATA / "mistral4-f32.gguf", n_context) as model:
            tables = [op.table for op in model.spec.ops() if isinstance(op, Rope)]
        assert {table.growth > 0 for table in tables} == ({True, False} if grows else {False})
        assert any(table.scaling == "still" for table in tables) == grows


def test_layers_of_puzzle_have_their_own_experts() -> None:
    with open_model(DATA / "peer" / "nemotron-puzzle.gguf") as model:
        experts = [op for op in model.spec.ops() if isinstance(op, Experts)]
        routers = [op for op in model.spec.ops() if isinstance(op, Router)]
    assert [(op.active, op.up[0].n_rows) for op in experts] == [(3, 16), (1, 24)]
    assert [op.active for op in routers] == [3, 1]


@pytest.mark.parametrize(("counts", "message"), [([0, 0, 0, 1], "is 0 in layer 1"), ([0, 5, 0, 1], "is 5 in layer 1")])
def test_layers_with_experts_need_counts(tmp_path: Path, counts: list[int], message: str) -> None:
    with pytest.raises(BadGGUF, match=message):
        spec_with(tmp_path, "peer/nemotron-puzzle", expert_used_count=counts)


def test_a_llama4_without_chunks_and_a_grok_that_grows_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel, match="does not say which layers are rotated"):
        spec_with(tmp_path, "converted/llama4-bf16", attention__sliding_window=0)
    with pytest.raises(UnsupportedModel, match="edgeinfer has Grok 1"):
        spec_with(tmp_path, "peer/grok", attention__temperature_length=1024)


def test_gates_of_laguna_are_told_by_their_rows() -> None:
    with open_model(CONVERTED / "laguna-bf16.gguf") as model:
        gates = [op for op in model.spec.ops() if isinstance(op, GatedHeads)]
        heads = [op.heads for op in model.spec.ops() if isinstance(op, Attention)]
        assert not any(isinstance(op, GatedAct) and op.activation == "softplus" for op in model.spec.ops())
    assert [op.heads for op in gates] == heads == [2, 4, 4, 4, 2]


def test_dense_layers_of_cohere2moe_are_always_rotated() -> None:
    with open_model(CONVERTED / "cohere2moe-bf16.gguf") as model:
        stages = [stage.ops for stage in model.spec.stages if stage.name.startswith("blk")]
    windows = [op.window for ops in stages for op in ops if isinstance(op, Attention)]
    assert windows == [None, 12, None]
    assert [any(isinstance(op, Rope) for op in ops) for ops in stages] == [True, True, False]
