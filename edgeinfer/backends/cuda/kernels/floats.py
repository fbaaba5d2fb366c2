"""Products with float weights: float32 activations, one chain of fused multiply-adds per lane.

A warp computes one row; lane l takes chunks l, l + LANES, ... of eight columns, in order. Twin: `x @ matrix.T`.
"""

from __future__ import annotations

import numpy as np
from numba import cuda

from edgeinfer.backends.cuda.kernels.intrinsics import LANES, float_of, half_of, lane_sum, load4
from edgeinfer.backends.cuda.kernels.products import settle


def eight_floats(kind):
    """Device function: the eight floats of chunk `chunk` of a flat array of words."""
    sixteen, keep, top = np.uint32(16), np.uint32(0xFFFF), np.uint32(0xFFFF0000)

    @cuda.jit(device=True)
    def halves(words, chunk):
        a, b, c, d = load4(words, 4 * chunk)
        return (
            half_of(np.uint16(a & keep)),
            half_of(np.uint16(a >> sixteen)),
            half_of(np.uint16(b & keep)),
            half_of(np.uint16(b >> sixteen)),
            half_of(np.uint16(c & keep)),
            half_of(np.uint16(c >> sixteen)),
            half_of(np.uint16(d & keep)),
            half_of(np.uint16(d >> sixteen)),
        )

    @cuda.jit(device=True)
    def brains(words, chunk):
        a, b, c, d = load4(words, 4 * chunk)
        return (
            float_of(a << sixteen),
            float_of(a & top),
            float_of(b << sixteen),
            float_of(b & top),
            float_of(c << sixteen),
            float_of(c & top),
            float_of(d << sixteen),
            float_of(d & top),
        )

    @cuda.jit(device=True)
    def singles(words, chunk):
        a, b, c, d = load4(words, 8 * chunk)
        e, f, g, h = load4(words, 8 * chunk + 4)
        return float_of(a), float_of(b), float_of(c), float_of(d), float_of(e), float_of(f), float_of(g), float_of(h)

    return {"f16": halves, "bf16": brains, "f32": singles}[kind]


def float_product(kind, tile):
    """Kernel: rows of float weights times `tile` tokens; grid (rows / block height, tokens / tile)."""
    floats_of = eight_floats(kind)

    @cuda.jit
    def product(words, x, bias, out, n_rows, n_chunks, tokens, stride, mode):
        """out float32[tokens, stride]: columns 0..n_rows - 1 are written, or added to.

        words uint32: n_rows rows of n_chunks chunks; x float32[tokens, 8 * n_chunks]; bias float32[n_rows]. mode: 1
        adds the bias, 2 adds to `out`, 3 both.
        """
        lane = cuda.threadIdx.x
        row = cuda.blockIdx.x * cuda.blockDim.y + cuda.threadIdx.y
        first = cuda.blockIdx.y * tile
        if row >= n_rows:
            return
        sums = cuda.local.array(tile, np.float32)
        for t in range(tile):
            sums[t] = np.float32(0)
        for column in range(lane, n_chunks, LANES):
            w0, w1, w2, w3, w4, w5, w6, w7 = floats_of(words, row * n_chunks + column)
            for t in range(tile):
                at = 8 * (min(first + t, tokens - 1) * n_chunks + column)
                x0, x1, x2, x3 = load4(x, at)
                x4, x5, x6, x7 = load4(x, at + 4)
                value = cuda.fma(w0, x0, sums[t])
                value = cuda.fma(w1, x1, value)
                value = cuda.fma(w2, x2, value)
                value = cuda.fma(w3, x3, value)
                value = cuda.fma(w4, x4, value)
                value = cuda.fma(w5, x5, value)
                value = cuda.fma(w6, x6, value)
                sums[t] = cuda.fma(w7, x7, value)
        for t in range(tile):
            total = lane_sum(sums[t])
            if lane == 0 and first + t < tokens:
                settle(total, bias, out, row, (first + t) * stride + row, mode)

    return product
