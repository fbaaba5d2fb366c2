"""How a product's result goes to where it belongs: the one ending of all product kernels."""

from __future__ import annotations

from numba import cuda


@cuda.jit(device=True)
def settle(total, bias, out, row, place, mode):
    """out[place] = total, with bias[row] added (mode & 1) and what is at `place` already (mode & 2); float32."""
    if mode & 1:
        total += bias[row]
    if mode & 2:
        total += out[place]
    out[place] = total
