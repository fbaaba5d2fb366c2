"""Learned positions of a square grid, for grids of other shapes.

In: the table of a square grid, a grid. Out: a row for each of its patches, row by row. Sources: SigLIP 2
(arXiv 2502.14786), which resizes the table as an image, by antialiased bilinear interpolation; Qwen3-VL
(arXiv 2511.21631), whose grids have the table's corners at their own; GLM-4.1V (arXiv 2507.01006), by cubic
convolution without antialiasing.
"""

from __future__ import annotations

import math

import numpy as np

from edgeinfer.graph.step import Floats
from edgeinfer.models.vision.encoder import Size


def interpolated(table: Floats, grid: Size) -> Floats:
    """Positions of a grid, float32[down * across, D], of a table float32[side * side, D]."""
    side = math.isqrt(len(table))
    return _summed(table, _weights(side, grid[0]), _weights(side, grid[1]))


def stretched(table: Floats, grid: Size) -> Floats:
    """The same from corner to corner, each between the four nearest of the table."""
    side = math.isqrt(len(table))
    return _summed(table, _between(side, grid[0]), _between(side, grid[1]))


def linear(table: Floats, grid: Size) -> Floats:
    """The same without antialiasing (PaddleOCR-VL)."""
    side = math.isqrt(len(table))
    return _summed(table, _linear(side, grid[0]), _linear(side, grid[1]))


def cubic(table: Floats, grid: Size) -> Floats:
    """The same by cubic convolution (Keys 1981) with a = -0.75, each from the 16 nearest."""
    side = math.isqrt(len(table))
    return _summed(table, _cubic(side, grid[0]), _cubic(side, grid[1]))


def nearest(table: Floats, grid: Size) -> Floats:
    """The same, each that of the table's place which a patch begins in (MiniCPM-V).

    Whole numbers divide here; the published code's float32 is now and then one place short at an exact edge.
    """
    side = math.isqrt(len(table))
    down, across = (np.arange(n) * side // n for n in grid)
    rows: Floats = table[(down[:, None] * side + across).reshape(-1)]
    return rows


def sines_and_cosines(grid: Size, width: int) -> Floats:
    """Fixed positions of a grid, float32[down * across, width]: by column in the first half, by row in the second.

    Each half is the sines and then the cosines of as many frequencies (Masked Autoencoders, arXiv 2111.06377).
    """
    n = width // 4
    frequencies = 1 / np.float32(10000) ** (np.arange(n, dtype=np.float32) / np.float32(n))
    down, across = (np.arange(edge, dtype=np.float32)[:, None] * frequencies for edge in grid)
    by_row, by_column = (np.concatenate([np.sin(turns), np.cos(turns)], axis=1) for turns in (down, across))
    halves = np.tile(by_column, (grid[0], 1)), np.repeat(by_row, grid[1], axis=0)
    return np.concatenate(halves, axis=1).astype(np.float32)


def _summed(table: Floats, down: Floats, across: Floats) -> Floats:
    side, width = down.shape[1], table.shape[1]
    rows = down @ table.reshape(side, -1)
    columns = across @ rows.reshape(-1, side, width)
    return np.ascontiguousarray(columns.reshape(-1, width), np.float32)


def _weights(n_in: int, n_out: int) -> Floats:
    """The share of each of `n_in` positions in each of `n_out`: float32[n_out, n_in]."""
    scale = n_in / n_out
    centres = (np.arange(n_out) + 0.5) * scale - 0.5
    shares = np.maximum(1 - np.abs(np.arange(n_in) - centres[:, None]) / max(scale, 1.0), 0)
    shares /= shares.sum(axis=1, keepdims=True)
    return shares.astype(np.float32)


def _between(n_in: int, n_out: int) -> Floats:
    """The same from the first to the last: float32[n_out, n_in]."""
    places = np.arange(n_out, dtype=np.float32) * np.float32(n_in - 1) / np.float32(max(n_out - 1, 1))
    return _hats(places, n_in)


def _linear(n_in: int, n_out: int) -> Floats:
    """The same between the two nearest; what is beyond the edges is as the edge."""
    places = (np.arange(n_out, dtype=np.float32) + np.float32(0.5)) * np.float32(n_in / n_out) - np.float32(0.5)
    return _hats(np.clip(places, 0, n_in - 1), n_in)


def _hats(places: Floats, n_in: int) -> Floats:
    """The share of each of `n_in` positions in each place between them."""
    shares: Floats = np.maximum(1 - np.abs(places[:, None] - np.arange(n_in, dtype=np.float32)), np.float32(0))
    return shares


def _cubic(n_in: int, n_out: int) -> Floats:
    """The same by cubic convolution; what is beyond the edges is as the edge."""
    places = (np.arange(n_out, dtype=np.float32) + np.float32(0.5)) * np.float32(n_in / n_out) - np.float32(0.5)
    shares = np.zeros((n_out, n_in), np.float32)
    first = np.floor(places).astype(np.int64) - 1
    for tap in range(4):
        away = np.abs(places - (first + tap))
        near = (1.25 * away - 2.25) * away * away + 1
        far = -0.75 * (((away - 5) * away + 8) * away - 4)
        np.add.at(shares, (np.arange(n_out), np.clip(first + tap, 0, n_in - 1)), np.where(away <= 1, near, far))
    return shares
