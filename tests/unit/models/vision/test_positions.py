"""Learned positions of a square grid, stretched to other grids from corner to corner."""

from __future__ import annotations

import numpy as np

from edgeinfer.models.vision.positions import stretched


def test_a_grid_of_the_same_size_has_the_table() -> None:
    table = np.random.default_rng(0).standard_normal((9, 4)).astype(np.float32)
    assert np.array_equal(stretched(table, (3, 3)), table)


def test_corners_stay_and_what_is_between_is_a_mean() -> None:
    table = np.arange(4, dtype=np.float32)[:, None] ** 2
    found = stretched(table, (3, 5)).reshape(3, 5)
    assert found[[0, 0, -1, -1], [0, -1, 0, -1]].tolist() == [0, 1, 4, 9]
    assert found[1, 2] == table.mean()
    assert found[0].tolist() == [0, 0.25, 0.5, 0.75, 1]


def test_one_patch_has_the_first_position() -> None:
    assert stretched(np.arange(9, dtype=np.float32)[:, None], (1, 2)).reshape(-1).tolist() == [0, 2]
