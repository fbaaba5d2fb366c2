"""Kernels that only multiply and add, in CHAINS independent chains per thread, so that none waits for another.

In: a float32 array with one element per thread, rounds. Out: numbers that depend on all chains.
"""

from __future__ import annotations

import numpy as np
from numba import cuda

from edgeinfer.backends.cuda.kernels.intrinsics import dp4a

CHAINS = 8


@cuda.jit  # type: ignore[untyped-decorator]
def dots(out, n_rounds):  # type: ignore[no-untyped-def]
    """Dot products of four bytes: out float32[threads]."""
    at = cuda.grid(1)
    x = np.uint32(at)
    a = b = c = d = e = f = g = h = np.int32(at)
    for _ in range(n_rounds):
        a, b, c, d = dp4a(x, x, a), dp4a(x, x, b), dp4a(x, x, c), dp4a(x, x, d)
        e, f, g, h = dp4a(x, x, e), dp4a(x, x, f), dp4a(x, x, g), dp4a(x, x, h)
    out[at] = np.float32(a ^ b ^ c ^ d ^ e ^ f ^ g ^ h)


@cuda.jit  # type: ignore[untyped-decorator]
def fmas(out, n_rounds):  # type: ignore[no-untyped-def]
    """Multiply-adds of float32: out float32[threads]."""
    at = cuda.grid(1)
    x = np.float32(at)
    a, b, c, d = x, x + np.float32(1), x + np.float32(2), x + np.float32(3)
    e, f, g, h = x + np.float32(4), x + np.float32(5), x + np.float32(6), x + np.float32(7)
    for _ in range(n_rounds):
        a, b, c, d = cuda.fma(a, x, a), cuda.fma(b, x, b), cuda.fma(c, x, c), cuda.fma(d, x, d)
        e, f, g, h = cuda.fma(e, x, e), cuda.fma(f, x, f), cuda.fma(g, x, g), cuda.fma(h, x, h)
    out[at] = a + b + c + d + e + f + g + h
