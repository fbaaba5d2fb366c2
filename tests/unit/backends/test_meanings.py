"""The Hadamard rotation and what rounding loses, by their definitions."""

from __future__ import annotations

from typing import get_args

import numpy as np
import pytest

from edgeinfer.backends.meanings import (
    FORMS,
    MOST_ROTATED,
    RoundedForm,
    rotated,
    rotation_block,
    round_activations,
    round_cached,
    round_numbers,
    round_queries,
)
from edgeinfer.settings import KVKind

WIDTHS = (1, 6, 16, 24, 64, 80, 96, 128, 512)


def heads(width: int, n: int = 40) -> np.ndarray:
    return np.random.default_rng(width).standard_normal((n, width), np.float32)


def hadamard(size: int) -> np.ndarray:
    """Sylvester's matrix, orthonormal."""
    found = np.ones((1, 1))
    while len(found) < size:
        found = np.block([[found, found], [found, -found]])
    return found / size**0.5


@pytest.mark.parametrize("width", WIDTHS)
def test_blocks_are_multiplied_by_the_hadamard_matrix(width: int) -> None:
    given, size = heads(width), rotation_block(width)
    assert size == min(max(2**n for n in range(10) if width % 2**n == 0), MOST_ROTATED)
    expected = (given.astype(np.float64).reshape(-1, size) @ hadamard(size)).reshape(given.shape)
    assert np.allclose(rotated(given), expected, rtol=0, atol=1e-5)
    assert np.allclose(rotated(rotated(given)), given, rtol=0, atol=1e-5)


@pytest.mark.parametrize("width", WIDTHS)
def test_scores_of_rotated_heads_are_those_of_the_heads(width: int) -> None:
    queries, keys = heads(width), heads(width, 30)
    assert np.allclose(rotated(queries) @ rotated(keys).T, queries @ keys.T, rtol=0, atol=1e-3)
    assert np.allclose(round_queries(queries), rotated(round_activations(rotated(queries))), rtol=0, atol=0)


def test_codes_of_four_bits_are_sixteen_levels_around_zero() -> None:
    given = heads(16, 200)
    scales = (np.abs(given).max(axis=1, keepdims=True) / np.float32(7.5)).astype(np.float16).astype(np.float32)
    levels = round_numbers(given, "q4") / scales
    assert np.allclose(np.unique(levels.round(3)), np.arange(16) - 7.5)
    assert np.all(np.abs(levels - given / scales) < 0.51)


@pytest.mark.parametrize(("form", "most"), [("q8", 0.004), ("q4", 0.06)])
def test_a_large_number_costs_little_because_it_is_spread(form: RoundedForm, most: float) -> None:
    given = heads(64)
    given[:, 5] *= 50

    def lost(rounded: np.ndarray) -> float:
        others = np.arange(64) != 5
        return float(np.linalg.norm((rounded - given)[:, others]) / np.linalg.norm(given))

    assert lost(round_cached(given, form)) < most
    assert lost(round_cached(given, form)) < lost(round_numbers(given, form)) / 3


def test_every_kind_of_cache_has_forms() -> None:
    assert set(FORMS) == set(get_args(KVKind))
    assert FORMS["q8q4"] == ("q8", "q4")
