"""Dequantisation: single values of packed integer weights, and whole rows as float16 for large products.

Twins: the values of `models.quants`, as float32 up to rounding of the last bit, or rounded to float16.
"""

from __future__ import annotations

import numpy as np
from numba import cuda

from edgeinfer.backends.cuda.kernels.floats import eight_floats
from edgeinfer.backends.cuda.kernels.intrinsics import half_bits
from edgeinfer.backends.cuda.kernels.products import block_scale, code_words, settle


def unpacked_value(bits, low, scales, group, has_minimum):
    """Device function: value `place` of a block, given the eight words of its codes."""
    parts = 2 if has_minimum else 1
    per_group = 32 // group
    scale_of = block_scale(scales, per_group * parts, parts)
    lowest, is_signed = np.int32(low), bits == 8

    @cuda.jit(device=True)
    def value(words, numbers, units, block, unit, place):
        code = np.int32((words[place // 4] >> np.uint32(8 * (place % 4))) & np.uint32(255))
        if is_signed and code > 127:
            code = np.int32(code - 256)
        share = place // group
        number = scale_of(numbers, units, block, unit, share) * np.float32(np.int32(code + lowest))
        if has_minimum:
            number += scale_of(numbers, units, block, unit, per_group + share)
        return number

    return value


def integer_halves(bits, low, scales, group, has_minimum):
    """Kernel: a thread per block of 32 columns; grid (blocks of all rows / block width)."""
    parts = 2 if has_minimum else 1
    words_of = code_words(bits)
    value_of = unpacked_value(bits, low, scales, group, has_minimum)

    @cuda.jit
    def unpack(codes, high, numbers, units, out, first_row, n_rows, n_blocks):
        """out uint16[n_rows, 32 * n_blocks] (float16 bits) = rows from first_row on; weights: `layout.IntegerForm`."""
        at = cuda.grid(1)
        if at >= n_rows * n_blocks:
            return
        row, column = first_row + at // n_blocks, at % n_blocks
        block = row * n_blocks + column
        unit = (row * ((n_blocks + 7) // 8) + column // 8) * parts
        words = words_of(codes, high, block)
        for place in range(32):
            out[32 * at + place] = half_bits(value_of(words, numbers, units, block, unit, place))

    return unpack


def float_halves(kind):
    """Kernel: a thread per chunk of eight columns; grid (chunks of all rows / block width)."""
    floats_of = eight_floats(kind)

    @cuda.jit
    def unpack(words, out, first_row, n_rows, n_chunks):
        """out uint16[n_rows, 8 * n_chunks] (float16 bits) = rows from first_row on; words as `layout.FloatForm`."""
        at = cuda.grid(1)
        if at >= n_rows * n_chunks:
            return
        values = floats_of(words, first_row * n_chunks + at)
        for place in range(8):
            out[8 * at + place] = half_bits(values[place])

    return unpack


def halving():
    """Kernel: a thread per number; grid (numbers / block width)."""

    @cuda.jit
    def halve(x, out, count):
        """x float32[count] -> out uint16[count], float16 bits."""
        at = cuda.grid(1)
        if at < count:
            out[at] = half_bits(x[at])

    return halve


def settling():
    """Kernel: a thread per row of weights; grid (rows / block width, tokens)."""

    @cuda.jit
    def settle_rows(products, bias, out, first_row, n_rows, stride, mode):
        """products float32[tokens, n_rows] -> out float32[tokens, stride] from first_row on; mode as in `products`."""
        row = cuda.grid(1)
        if row < n_rows:
            total = products[cuda.blockIdx.y * n_rows + row]
            at = first_row + row
            settle(total, bias, out, at, cuda.blockIdx.y * stride + at, mode)

    return settle_rows
