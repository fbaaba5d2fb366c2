"""Cached rows of the embedding are those that would be decoded; rotations are the same however far passes reach."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgeinfer.backends import weights
from edgeinfer.backends.base import Limits
from edgeinfer.backends.cpu.layout.padding import learned_positions
from edgeinfer.backends.cpu.memory import tables
from edgeinfer.backends.cpu.memory.tables import AT_ONCE, Embedding, Rotations
from edgeinfer.backends.weights import matrix
from edgeinfer.errors import BadGGUF
from edgeinfer.graph.ops.embed import Embed
from edgeinfer.graph.ops.token_rows import TokenRows
from edgeinfer.graph.rotary import RopeSections, RopeTable
from edgeinfer.models import rope
from edgeinfer.models.load import open_model
from edgeinfer.models.quants import dequantise
from tests.golden.goldens import Golden


@pytest.mark.parametrize("name", ["llama-k", "gemma2-q4_0", "qwen3-bf16", "phi3-f16", "opt-f32", "opt-k"])
@pytest.mark.parametrize("n_kept", [1, 7, 10000])
def test_rows_are_those_of_the_file(name: str, n_kept: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tables, "embedding_rows", lambda weight: n_kept)
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


@pytest.mark.parametrize("name", ["gemma4-small-f32", "gemma4-small-q8_0"])
def test_rows_of_a_further_table_are_those_of_the_file(name: str) -> None:
    with open_model(Golden.read(name).model) as model:
        (op,) = (op for op in model.spec.ops() if isinstance(op, TokenRows))
        table, width = matrix(model.file, op.weight) * np.float32(op.scale), op.weight.columns
        rows = Embedding(model.file, op)
        for tokens in (np.array(ids, np.int32) for ids in ([3], [7, -1, 3, 7, -20], [0, 3])):
            out = np.full((len(tokens) + 1, width + 3), 7, np.float32)
            rows.write_rows(tokens, out)
            assert (out[: len(tokens), :width] == table[np.maximum(tokens, 0)]).all()
            assert (out[len(tokens)] == 7).all()
            assert (out[:, width:] == 7).all()


@pytest.mark.skipif(sys.platform == "win32", reason="mapped files cannot be cut there")
def test_a_file_that_was_cut_short_is_an_error_where_rows_are_missing(tmp_path: Path) -> None:
    path = shutil.copy(Golden.read("qwen3-bf16").model, tmp_path / "cut.gguf")
    with open_model(path) as model:
        (op,) = (op for op in model.spec.ops() if isinstance(op, Embed))
        rows, out = Embedding(model.file, op), np.zeros((2, op.weight.columns), np.float32)
        rows.write(np.array([3, 4], np.int32), np.zeros(2, np.int32), out)
        before = out.copy()
        os.truncate(path, 100)
        rows.write(np.array([3, 4], np.int32), np.zeros(2, np.int32), out)
        assert (out == before).all()
        with pytest.raises(BadGGUF, match="cut short by another program"):
            rows.write(np.array([3, 5], np.int32), np.zeros(2, np.int32), out)


N_CONTEXT, MAX_TOKENS = 2 * AT_ONCE + 100, 16
FACTORS = np.array([1.0, 2.0, 4.0], np.float32)


@pytest.fixture
def rotations(monkeypatch: pytest.MonkeyPatch) -> Rotations:
    monkeypatch.setattr(weights, "rope_factors", lambda _, table: FACTORS if table.factors else None)
    return Rotations(None, N_CONTEXT, MAX_TOKENS)  # type: ignore[arg-type]


def test_rows_are_there_once_they_are_reached(rotations: Rotations) -> None:
    tables = [RopeTable(1e4, 8), RopeTable(1e6, 6, factors="rope_freqs.weight")]
    made = [rotations.of(table) for table in tables]
    for n_positions in (1, AT_ONCE, AT_ONCE + 1, 5, N_CONTEXT):
        rotations.reach(n_positions)
        for table, pair in zip(tables, made, strict=True):
            expected = rope.rotations(table, N_CONTEXT, FACTORS if table.factors else None)
            for array, all_rows in zip(pair, expected, strict=True):
                assert array[:n_positions].tobytes() == all_rows[:n_positions].tobytes()


def test_a_table_keeps_its_place(rotations: Rotations) -> None:
    first = rotations.of(RopeTable(1e4, 8))
    rotations.reach(N_CONTEXT)
    assert all(again is array for again, array in zip(rotations.of(RopeTable(1e4, 8)), first, strict=True))
    assert rotations.nbytes == 2 * 4 * 4 * N_CONTEXT


def test_bad_factors_are_refused_before_any_pass(rotations: Rotations) -> None:
    with pytest.raises(BadGGUF, match=r"rope_freqs\.weight must hold 4 finite numbers"):
        rotations.of(RopeTable(1e4, 8, factors="rope_freqs.weight"))


def test_an_interruption_leaves_them_to_the_next_pass(rotations: Rotations, monkeypatch: pytest.MonkeyPatch) -> None:
    tables = RopeTable(1e4, 8), RopeTable(1e6, 8)
    made = [rotations.of(table) for table in tables]
    compute = rope.rotations

    def interrupted(table: RopeTable, *arguments: Any) -> Any:
        if table == tables[1]:
            raise KeyboardInterrupt
        return compute(table, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(rope, "rotations", interrupted)
        with pytest.raises(KeyboardInterrupt):
            rotations.reach(5)
    rotations.reach(5)
    for table, (cosines, _) in zip(tables, made, strict=True):
        assert cosines[:5].tobytes() == compute(table, 5)[0].tobytes()


@pytest.mark.parametrize("interleaved", [False, True])
def test_each_pair_turns_by_the_position_of_its_axis(rotations: Rotations, interleaved: bool) -> None:
    table, sections = RopeTable(1e4, 16), RopeSections(4, 2, 2, interleaved)
    own = ([0, 1, 2, 0, 1, 2, 0, 0] if interleaved else [0, 0, 0, 0, 1, 1, 2, 2]), rotations.of(table, sections)
    plain = rotations.of(RopeTable(1e6, 8))
    axes = np.array([[3, 3, 3], [AT_ONCE, 5, 7], [9, 9, 9], [1, 2, 1]], np.int32)
    rows = rotations.rows_of(axes)
    assert rows.tolist() == [3, N_CONTEXT, 9, N_CONTEXT + 1]
    for array, expected in zip(own[1], rope.rotations(table, N_CONTEXT), strict=True):
        for row, positions in zip(rows, axes, strict=True):
            wanted = np.array([expected[positions[axis], pair] for pair, axis in enumerate(own[0])])
            assert array[row].tobytes() == wanted.tobytes()
    assert len(plain[0]) == N_CONTEXT
    assert len(own[1][0]) == N_CONTEXT + MAX_TOKENS
