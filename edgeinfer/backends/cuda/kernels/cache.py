"""Writing keys and values to the cache, and copying cached slots.

Twins: float16 rounding for `f16`, `meanings.round_numbers` for `q8`, without rotation.
"""

from __future__ import annotations

import numpy as np
from numba import cuda

from edgeinfer.backends.cuda.kernels.intrinsics import half_bits
from edgeinfer.backends.cuda.kernels.rounding import SMALLEST, code_of

LARGEST_HALF = np.float32(65504.0)


def store_halves():
    """Kernel: a thread per two numbers; grid (words of a slot / block width, tokens)."""

    @cuda.jit
    def store(source, step, slots_at, words, n_heads, head_width, head_words, stride):
        """source float32[tokens, stride] -> words uint32[slots, n_heads, head_words], padded with zeros."""
        word = cuda.grid(1)
        if word >= n_heads * head_words:
            return
        token = cuda.blockIdx.y
        column = 2 * (word % head_words)
        at = token * stride + word // head_words * head_width + column
        low, high = np.uint32(0), np.uint32(0)
        if column < head_width:
            low = np.uint32(half_bits(source[at]))
        if column + 1 < head_width:
            high = np.uint32(half_bits(source[at + 1]))
        words[np.int64(step[slots_at + token]) * n_heads * head_words + word] = np.uint32(low | (high << np.uint32(16)))

    return store


def store_codes():
    """Kernel: a thread per block of 32 numbers; grid (blocks of a slot / block width, tokens)."""

    @cuda.jit
    def store(source, step, slots_at, words, scales, n_heads, head_width, head_blocks, stride):
        """source float32[tokens, stride] -> words uint32[slots, n_heads, 8 * head_blocks], scales uint16 (halves)."""
        block = cuda.grid(1)
        if block >= n_heads * head_blocks:
            return
        token = cuda.blockIdx.y
        column = 32 * (block % head_blocks)
        at = token * stride + block // head_blocks * head_width + column
        count = min(32, head_width - column)
        largest = np.float32(0)
        for place in range(count):
            largest = max(largest, abs(source[at + place]))
        inverse = np.float32(0)
        if largest >= SMALLEST:
            inverse = np.float32(127) / largest
        target = np.int64(step[slots_at + token]) * n_heads * head_blocks + block
        scales[target] = half_bits(min(largest / np.float32(127), LARGEST_HALF))
        for four in range(8):
            word = np.uint32(0)
            for byte in range(4):
                place = 4 * four + byte
                if place < count:
                    code = np.uint32(code_of(source[at + place], inverse) & 255)
                    word = np.uint32(word | (code << np.uint32(8 * byte)))
            words[8 * target + four] = word

    return store


def copying():
    """Kernel: a thread per number of a slot, copying slot after slot; grid (numbers / block width)."""

    @cuda.jit
    def copy(pool, pairs, n_pairs, width):
        """pool [slots, width]; pairs int32[2 * n_pairs]: sources, then targets, copied in order."""
        column = cuda.grid(1)
        if column < width:
            for pair in range(n_pairs):
                source, target = np.int64(pairs[pair]), np.int64(pairs[n_pairs + pair])
                pool[target * width + column] = pool[source * width + column]

    return copy
