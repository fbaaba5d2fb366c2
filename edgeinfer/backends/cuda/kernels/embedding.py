"""Rows of an embedding, from the same packed weights that products read.

Twin: `scale * matrix[tokens]`, to a rounding of the last bit.
"""

from __future__ import annotations

import numpy as np
from numba import cuda

from edgeinfer.backends.cuda.kernels.floats import eight_floats
from edgeinfer.backends.cuda.kernels.products import block_scale, code_words


def integer_rows(bits, low, scales, group, has_minimum):
    """Kernel: a thread per block of 32 columns; grid (blocks / block width, tokens)."""
    parts = 2 if has_minimum else 1
    per_group = 32 // group
    words_of = code_words(bits)
    scale_of = block_scale(scales, per_group * parts, parts)
    lowest = np.int32(low)
    is_signed = bits == 8

    @cuda.jit
    def embed(codes, high, numbers, units, step, tokens_at, out, n_blocks, stride, factor):
        """out float32[tokens, stride] = factor * the rows that `step` names; weights as `layout.IntegerForm`."""
        column = cuda.grid(1)
        if column >= n_blocks:
            return
        token = cuda.blockIdx.y
        row = np.int64(step[tokens_at + token])
        block = row * n_blocks + column
        unit = (row * ((n_blocks + 7) // 8) + column // 8) * parts
        words = words_of(codes, high, block)
        for place in range(32):
            word = words[place // 4]
            code = np.int32((word >> np.uint32(8 * (place % 4))) & np.uint32(255))
            if is_signed and code > 127:
                code = np.int32(code - 256)
            share = place // group
            value = scale_of(numbers, units, block, unit, share) * np.float32(np.int32(code + lowest))
            if has_minimum:
                value += scale_of(numbers, units, block, unit, per_group + share)
            out[token * stride + 32 * column + place] = value * factor

    return embed


def float_rows(kind):
    """Kernel: a thread per chunk of eight columns; grid (chunks / block width, tokens)."""
    floats_of = eight_floats(kind)

    @cuda.jit
    def embed(words, step, tokens_at, out, n_chunks, stride, factor):
        """out float32[tokens, stride] = factor * the rows that `step` names; words as `layout.FloatForm`."""
        chunk = cuda.grid(1)
        if chunk >= n_chunks:
            return
        token = cuda.blockIdx.y
        row = np.int64(step[tokens_at + token])
        values = floats_of(words, row * n_chunks + chunk)
        for place in range(8):
            out[token * stride + 8 * chunk + place] = values[place] * factor

    return embed
