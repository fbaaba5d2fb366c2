"""Q5_K: 256 weights as 5-bit codes in groups of 32, each with a 6-bit scale and a 6-bit minimum.

Block, 176 bytes: f16 unit of the scales, f16 unit of the minimums, 12 bytes of scales and minimums, 32 bytes of fifth
bits (bit p of byte i is weight 32 * p + i), 128 bytes of nibbles (four runs of 32 bytes; low nibbles are a run's
weights 0-31, high nibbles 32-63). In: raw rows. Out: codes. Source: dequantize_row_q5_K in ggml-quants.c.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgeinfer.models.quants._bits import blocks_of, halves, planes, rows_of, scaled, six_bit_pairs
from edgeinfer.models.quants._format import BlockFormat, Codes
from edgeinfer.models.quants._layout import BlockLayout, bytes_at, six_bits


def unpack(raw: NDArray[np.uint8]) -> Codes:
    """uint8[N, row_bytes] -> the Codes of N rows."""
    blocks = blocks_of(raw, 176)
    scales, minimums = six_bit_pairs(blocks[..., 4:16])
    codes = rows_of(planes(blocks[..., 48:].reshape(*blocks.shape[:2], 4, 32), 4))
    high = rows_of(planes(blocks[..., 16:48], 1))
    high <<= 4
    codes |= high
    minimum = scaled(halves(blocks[..., 2:4]), minimums)
    return Codes(codes, scaled(halves(blocks[..., :2]), scales), np.negative(minimum, out=minimum))


FORMAT = BlockFormat(
    name="Q5_K",
    ggml_type=13,
    block_size=256,
    block_bytes=176,
    group=32,
    code_range=(0, 31),
    has_minimum=True,
    f16_scales=False,
    unpack=unpack,
    layout=BlockLayout(planes=(bytes_at(4, 48, 2), bytes_at(1, 16, 8)), scale=0, minimum=2, multiples=six_bits(4)),
)
