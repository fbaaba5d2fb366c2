"""Writing a product's result to its place: the common end of all product kernels."""

from __future__ import annotations

from numba import cuda


@cuda.jit(device=True)
def settle(total, bias, out, row, place, mode):
    """out[place] = total, plus bias[row] (mode & 1) and plus the value already at `place` (mode & 2); float32."""
    if mode & 1:
        total += bias[row]
    if mode & 2:
        total += out[place]
    out[place] = total
