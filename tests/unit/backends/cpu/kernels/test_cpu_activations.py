"""Rounding to int8 records against the reference device's rounding, to the bit."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from numpy.typing import NDArray

from edgeinfer.backends import meanings
from edgeinfer.backends.cpu.layout import rounded
from edgeinfer.jit.library import KernelLibrary
from tests.unit.backends.cpu.kernel_calls import quantised, same_bits

RECORD = np.dtype(
    [
        ("codes", "i1", 32),
        ("scale", "f4"),
        ("sum", "f4"),
        ("less_8", "i4"),
        ("less_128", "i4"),
        ("half_sums", "f4", 2),
        ("half_less", "i4", 2),
    ]
)


def rows(n_rows: int, n_blocks: int) -> NDArray[np.float32]:
    """Blocks of very different sizes, with zeros, ties, single values and extremes among them."""
    random = np.random.default_rng(n_rows * 100 + n_blocks)
    blocks = random.standard_normal((n_rows * n_blocks, 32)).astype(np.float32)
    blocks *= np.float32(10.0) ** random.integers(-6, 6, (len(blocks), 1)).astype(np.float32)
    special = np.zeros((8, 32), np.float32)
    special[1] = 127.0
    special[2, 5] = -3e38
    special[3] = np.linspace(-127, 127, 32)
    special[4] = np.arange(32) / np.float32(2) - 8  # halves: ties to even once the largest is 127
    special[4, 0] = 127.0
    special[5] = -0.0
    special[6] = 1e-38
    special[7, ::2] = 2e-30
    blocks[: len(special)] = special[: len(blocks)]
    return blocks.reshape(n_rows, n_blocks * 32)


@pytest.mark.parametrize("n_blocks", [1, 2, 5])
def test_records_hold_what_the_reference_rounds_to(library: KernelLibrary, n_blocks: int) -> None:
    for n_rows in range(1, 21):
        values = rows(n_rows, n_blocks)
        n_padded = n_blocks + n_blocks % 2
        held = rounded.read_records(quantised(library, values), n_rows, n_padded)
        assert np.array_equal(held[:, : n_blocks * 32], meanings.round_activations(values))
        assert not held[:, n_blocks * 32 :].any()


def test_ties_round_to_even(library: KernelLibrary) -> None:
    values = np.full((1, 32), 127.0, np.float32)
    values[0, 1:6] = [0.5, 1.5, 2.5, -0.5, -1.5]
    codes = quantised(library, values).view(RECORD)[0]["codes"]
    assert codes[:6].tolist() == [127, 0, 2, 2, 0, -2]


def test_sums_of_a_record(library: KernelLibrary) -> None:
    for record in quantised(library, rows(1, 12)).view(RECORD):
        codes, scale = record["codes"].astype(np.int64), record["scale"]
        halves = codes.reshape(2, 16).sum(axis=1)
        total = int(halves.sum())
        assert record["sum"] == scale * np.float32(total)
        assert (record["less_8"], record["less_128"]) == (-8 * total, -128 * total)
        assert np.array_equal(record["half_sums"], scale * halves.astype(np.float32))
        assert np.array_equal(record["half_less"], -halves)


def test_tiny_blocks_are_zeros_here_and_in_the_reference(library: KernelLibrary) -> None:
    assert rounded.SMALLEST == meanings.SMALLEST
    for largest in (1e-45, 1e-38, 1e-36, 9e-31):
        values = np.full((1, 32), largest, np.float32)
        assert not rounded.read_records(quantised(library, values), 1, 2).any()
        assert not meanings.round_activations(values).any()
    values = np.full((1, 32), 1.1e-30, np.float32)
    assert np.array_equal(rounded.read_records(quantised(library, values), 1, 2)[:, :32], values)


@pytest.mark.parametrize("workers", [2, 3, 7])
def test_any_split_over_workers_writes_the_same(library: KernelLibrary, workers: int) -> None:
    for n_rows in (1, 2, 6, 13):
        values = rows(n_rows, 3)
        assert same_bits(quantised(library, values, workers), quantised(library, values))


def test_tiles_cover_all_tokens_once() -> None:
    for count, tiled in product(range(1, 100), (0, 1)):
        n_tiled = rounded.tiled_tokens(count) * tiled
        tiles = [rounded.tile_of(token, count, n_tiled) for token in range(count)]
        seen = [first + i for first, size in dict.fromkeys(tiles) for i in range(size)]
        assert seen == list(range(count))
        assert {size for first, size in tiles if first < n_tiled} == {16} - {0 if n_tiled else 16}
        assert all(first <= token < first + size for token, (first, size) in enumerate(tiles))
