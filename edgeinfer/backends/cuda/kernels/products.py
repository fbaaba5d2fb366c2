"""Products with integer weights: int8 activations, dot products of bytes, one chain of float additions per lane.

A warp computes one row; lane l takes blocks l, l + LANES, ... in order, and a butterfly sums the lanes. So the bits of
a result depend on the row and its token alone. Twin: `reference.round_activations(x) @ matrix.T`, up to the rounding of
sums.
"""

from __future__ import annotations

import numpy as np
from numba import cuda

from edgeinfer.backends.cuda.kernels.intrinsics import LANES, dp4a, half_of, lane_sum, load2, load4


@cuda.jit(device=True)
def settle(total, bias, out, row, place, mode):
    """out[place] = total, plus bias[row] (mode & 1) and plus the value already at `place` (mode & 2); float32."""
    if mode & 1:
        total += bias[row]
    if mode & 2:
        total += out[place]
    out[place] = total


def code_words(bits):
    """Device function: the eight words of a block's codes, four columns each, from `codes` (and `high`)."""
    nibbles, pairs = np.uint32(0x0F0F0F0F), np.uint32(0x03030303)
    four, two, six = np.uint32(4), np.uint32(2), np.uint32(6)

    @cuda.jit(device=True)
    def words_4(codes, high, block):
        a, b, c, d = load4(codes, 4 * block)
        return (
            a & nibbles,
            b & nibbles,
            c & nibbles,
            d & nibbles,
            (a >> four) & nibbles,
            (b >> four) & nibbles,
            (c >> four) & nibbles,
            (d >> four) & nibbles,
        )

    @cuda.jit(device=True)
    def words_6(codes, high, block):
        a, b, c, d = load4(codes, 4 * block)
        p, q = load2(high, 2 * block)
        return (
            (a & nibbles) | ((p & pairs) << four),
            (b & nibbles) | (((p >> two) & pairs) << four),
            (c & nibbles) | (((p >> four) & pairs) << four),
            (d & nibbles) | (((p >> six) & pairs) << four),
            ((a >> four) & nibbles) | ((q & pairs) << four),
            ((b >> four) & nibbles) | (((q >> two) & pairs) << four),
            ((c >> four) & nibbles) | (((q >> four) & pairs) << four),
            ((d >> four) & nibbles) | (((q >> six) & pairs) << four),
        )

    @cuda.jit(device=True)
    def words_8(codes, high, block):
        a, b, c, d = load4(codes, 8 * block)
        e, f, g, h = load4(codes, 8 * block + 4)
        return a, b, c, d, e, f, g, h

    return {4: words_4, 6: words_6, 8: words_8}[bits]


def block_scale(kind, per_block, parts):
    """Device function: entry `place` of the `per_block` scales and minima of a block, float32.

    `unit`: the first unit of the block's super block; `parts`: 1, or 2 with minima, whose numbers come last.
    """
    scales = per_block // parts

    @cuda.jit(device=True)
    def half(numbers, units, block, unit, place):
        return half_of(numbers[per_block * block + place])

    @cuda.jit(device=True)
    def multiple(numbers, units, block, unit, place):
        return half_of(units[unit + place // scales]) * np.float32(numbers[per_block * block + place])

    @cuda.jit(device=True)
    def single(numbers, units, block, unit, place):
        return numbers[per_block * block + place]

    return {"half": half, "multiple": multiple, "float": single}[kind]


def integer_product(bits, low, scales, group, has_minimum, tile):
    """Kernel: rows of integer weights times `tile` tokens; grid (rows / block height, tokens / tile)."""
    parts = 2 if has_minimum else 1
    per_group = 32 // group
    words_of = code_words(bits)
    scale_of = block_scale(scales, per_group * parts, parts)
    is_halved, lowest = group == 16, np.int32(low)

    @cuda.jit
    def product(
        codes, high, numbers, units, x_codes, x_scales, x_sums, bias, out, n_rows, n_blocks, tokens, stride, mode
    ):
        """out float32[tokens, stride]: columns 0..n_rows - 1 are written, or added to.

        Weights as `layout.IntegerForm`; x_codes uint32[tokens, 8 * n_blocks], x_scales float32[tokens, n_blocks],
        x_sums int32[tokens, 2 * n_blocks]; bias float32[n_rows]. mode: 1 adds the bias, 2 adds to `out`, 3 both.
        """
        lane = cuda.threadIdx.x
        row = cuda.blockIdx.x * cuda.blockDim.y + cuda.threadIdx.y
        first = cuda.blockIdx.y * tile
        if row >= n_rows:
            return
        sums = cuda.local.array(tile, np.float32)
        for t in range(tile):
            sums[t] = np.float32(0)
        row_units = row * ((n_blocks + 7) // 8) * parts
        for column in range(lane, n_blocks, LANES):
            block = row * n_blocks + column
            unit = row_units + column // 8 * parts
            w0, w1, w2, w3, w4, w5, w6, w7 = words_of(codes, high, block)
            first_scale = scale_of(numbers, units, block, unit, 0)
            for t in range(tile):
                at = min(first + t, tokens - 1) * n_blocks + column
                x0, x1, x2, x3 = load4(x_codes, 8 * at)
                x4, x5, x6, x7 = load4(x_codes, 8 * at + 4)
                left, right = load2(x_sums, 2 * at)
                one = dp4a(w3, x3, dp4a(w2, x2, dp4a(w1, x1, dp4a(w0, x0, np.int32(0)))))
                other = dp4a(w7, x7, dp4a(w6, x6, dp4a(w5, x5, dp4a(w4, x4, np.int32(0)))))
                if is_halved:
                    second_scale = scale_of(numbers, units, block, unit, 1)
                    value = first_scale * np.float32(np.int32(one + lowest * left))
                    value = cuda.fma(second_scale, np.float32(np.int32(other + lowest * right)), value)
                    if has_minimum:
                        value = cuda.fma(scale_of(numbers, units, block, unit, 2), np.float32(left), value)
                        value = cuda.fma(scale_of(numbers, units, block, unit, 3), np.float32(right), value)
                else:
                    value = first_scale * np.float32(np.int32(one + other + lowest * (left + right)))
                    if has_minimum:
                        value = cuda.fma(
                            scale_of(numbers, units, block, unit, 1), np.float32(np.int32(left + right)), value
                        )
                sums[t] = cuda.fma(value, x_scales[at], sums[t])
        for t in range(tile):
            total = lane_sum(sums[t])
            if lane == 0 and first + t < tokens:
                settle(total, bias, out, row, (first + t) * stride + row, mode)

    return product
