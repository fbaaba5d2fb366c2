"""Rows of token or position embeddings, from packed weights in the same forms that products read.

Twin: `scale * matrix[tokens]`, up to rounding of the last bit. With `adds`, rows are added to the output.
"""

from __future__ import annotations

import numpy as np
from numba import cuda

from edgeinfer.backends.cuda.kernels.floats import eight_floats
from edgeinfer.backends.cuda.kernels.products import code_words
from edgeinfer.backends.cuda.kernels.unpacking import unpacked_value


def integer_rows(bits, low, scales, group, has_minimum):
    """Kernel: a thread per block of 32 columns; grid (blocks / block width, tokens)."""
    parts = 2 if has_minimum else 1
    words_of = code_words(bits)
    value_of = unpacked_value(bits, low, scales, group, has_minimum)

    @cuda.jit
    def embed(codes, high, numbers, units, step, tokens_at, out, n_blocks, stride, factor, adds):
        """out float32[tokens, stride] (+)= factor * the rows that `step` names; weights as `layout.IntegerForm`."""
        column = cuda.grid(1)
        if column >= n_blocks:
            return
        token = cuda.blockIdx.y
        row = np.int64(step[tokens_at + token])
        block = row * n_blocks + column
        unit = (row * ((n_blocks + 7) // 8) + column // 8) * parts
        words = words_of(codes, high, block)
        for place in range(32):
            value = value_of(words, numbers, units, block, unit, place)
            at = token * stride + 32 * column + place
            out[at] = value * factor + (out[at] if adds != 0 else np.float32(0))

    return embed


def float_rows(kind):
    """Kernel: a thread per chunk of eight columns; grid (chunks / block width, tokens)."""
    floats_of = eight_floats(kind)

    @cuda.jit
    def embed(words, step, tokens_at, out, n_chunks, stride, factor, adds):
        """out float32[tokens, stride] (+)= factor * the rows that `step` names; words as `layout.FloatForm`."""
        chunk = cuda.grid(1)
        if chunk >= n_chunks:
            return
        token = cuda.blockIdx.y
        row = np.int64(step[tokens_at + token])
        values = floats_of(words, row * n_chunks + chunk)
        for place in range(8):
            at = token * stride + 8 * chunk + place
            out[at] = values[place] * factor + (out[at] if adds != 0 else np.float32(0))

    return embed
