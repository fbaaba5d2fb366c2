"""Activations in the form integer products read: int8 codes per 32 columns, their scale, and sums of 16 columns.

Twin: `reference.round_activations`, except for values next to a tie, which the GPU rounds once instead of twice.
"""

from __future__ import annotations

import numpy as np
from numba import cuda

from edgeinfer.backends.cuda.kernels.intrinsics import load4

SMALLEST = np.float32(1e-30)
"""Blocks with no value above this become zeros, because 127 / largest must stay finite."""
NEAREST = np.float32(12582912.0)
"""1.5 * 2 ** 23: adding and subtracting it rounds a small float32 to the nearest integer, ties to even."""


@cuda.jit(device=True)
def largest_of(x, at):
    """The largest magnitude of the 32 floats from `at`."""
    largest = np.float32(0)
    for four in range(8):
        a, b, c, d = load4(x, at + 4 * four)
        largest = max(largest, max(max(abs(a), abs(b)), max(abs(c), abs(d))))
    return largest


@cuda.jit(device=True)
def code_of(value, inverse):
    """A value as an int8 code."""
    return np.int32((value * inverse + NEAREST) - NEAREST)


def rounding():
    """Kernel: a thread per block of 32 columns; grid (blocks of all tokens / block width)."""
    byte, eight, sixteen, more = np.uint32(255), np.uint32(8), np.uint32(16), np.uint32(24)

    @cuda.jit
    def round_blocks(x, codes, scales, sums, n_blocks):
        """x float32[32 * n_blocks] -> codes uint32[8 * n_blocks], scales float32[n_blocks], sums int32[2 * ...]."""
        block = cuda.grid(1)
        if block >= n_blocks:
            return
        largest = largest_of(x, 32 * block)
        inverse = np.float32(0)
        if largest >= SMALLEST:
            inverse = np.float32(127) / largest
        scales[block] = largest / np.float32(127)
        for half in range(2):
            total = np.int32(0)
            for four in range(4):
                word = 4 * half + four
                a, b, c, d = load4(x, 32 * block + 4 * word)
                i, j, k, m = code_of(a, inverse), code_of(b, inverse), code_of(c, inverse), code_of(d, inverse)
                total += i + j + k + m
                codes[8 * block + word] = (
                    (np.uint32(i & 255) & byte)
                    | (np.uint32(j & 255) << eight)
                    | (np.uint32(k & 255) << sixteen)
                    | (np.uint32(m & 255) << more)
                )
            sums[2 * block + half] = total

    return round_blocks
