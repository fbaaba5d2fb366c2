"""Cosines and sines that are made as positions are reached."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from edgeinfer.backends import weights
from edgeinfer.backends.cpu.memory.rotations import AT_ONCE, Rotations
from edgeinfer.errors import BadGGUF
from edgeinfer.graph.rotary import RopeSections, RopeTable
from edgeinfer.models import rope

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
