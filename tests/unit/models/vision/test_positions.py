"""Positions of grids: learned ones of a square, stretched or looked up; fixed ones."""

from __future__ import annotations

import numpy as np

from edgeinfer.models.vision.positions import nearest, sines_and_cosines, stretched


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


def test_patches_have_the_position_of_the_place_where_they_begin() -> None:
    table = np.arange(16, dtype=np.float32)[:, None]
    assert nearest(table, (4, 4)).reshape(-1).tolist() == list(range(16))
    assert nearest(table, (2, 8)).reshape(2, 8).tolist() == [[0, 0, 1, 1, 2, 2, 3, 3], [8, 8, 9, 9, 10, 10, 11, 11]]
    assert nearest(table, (3, 1)).reshape(-1).tolist() == [0, 4, 8]


def test_sines_and_cosines_are_of_columns_and_then_of_rows() -> None:
    found = sines_and_cosines((2, 3), 8).reshape(2, 3, 2, 2, 2)
    for row in range(2):
        for column in range(3):
            for half, place in enumerate((column, row)):
                turns = place * np.array([1, 10000**-0.5])
                np.testing.assert_allclose(found[row, column, half], [np.sin(turns), np.cos(turns)], atol=1e-6)
