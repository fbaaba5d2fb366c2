"""Learned positions of a square grid, for grids of other shapes.

In: the table of a square grid, a grid. Out: a row for each of its patches, row by row. Sources: SigLIP 2
(arXiv 2502.14786), which resizes the table as an image, by antialiased bilinear interpolation; Qwen3-VL
(arXiv 2511.21631), whose grids have the table's corners at their own.
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
    return np.maximum(0, 1 - np.abs(places[:, None] - np.arange(n_in, dtype=np.float32)))
