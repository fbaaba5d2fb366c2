"""How finely matrices are cut: rows that stay together.

In: rows of a matrix. Out: rows of a granule. Knows no devices.
"""

from __future__ import annotations

PANEL_ROWS = 16
"""Rows that kernels compute together."""
LEAST_GRANULES = 64
"""A matrix is cut at least so finely; small ones are cut within panels."""


def granule(n_rows: int) -> int:
    """Rows that stay together in a matrix of `n_rows`."""
    size = PANEL_ROWS
    while size > 1 and n_rows < size * LEAST_GRANULES:
        size //= 2
    return size
