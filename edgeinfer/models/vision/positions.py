"""Learned positions of a square grid, for grids of other shapes.

In: the table of a square grid, a grid. Out: a row for each of its patches, row by row. Source: SigLIP 2
(arXiv 2502.14786), which resizes the table as an image, by antialiased bilinear interpolation.
"""

from __future__ import annotations

import math

import numpy as np

from edgeinfer.graph.step import Floats
from edgeinfer.models.vision.encoder import Size


def interpolated(table: Floats, grid: Size) -> Floats:
    """Positions of a grid, float32[down * across, D], of a table float32[side * side, D]."""
    side, width = math.isqrt(len(table)), table.shape[1]
    down, across = (_weights(side, n) for n in grid)
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
