"""Q4_K: 256 weights as 4-bit codes in groups of 32, each with a 6-bit scale and a 6-bit minimum.

Block, 144 bytes: f16 unit of the scales, f16 unit of the minimums, 12 bytes of scales and minimums, 128 bytes of
nibbles (four runs of 32 bytes; low nibbles are a run's weights 0-31, high nibbles 32-63).
In: raw rows. Out: codes. Source: dequantize_row_q4_K in ggml-quants.c.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgeinfer.models.quants._bits import blocks_of, halves, planes, rows_of, scaled, six_bit_pairs
from edgeinfer.models.quants._format import BlockFormat, Codes
from edgeinfer.models.quants._layout import BlockLayout, bytes_at, six_bits


def unpack(raw: NDArray[np.uint8]) -> Codes:
    """uint8[N, row_bytes] -> the Codes of N rows."""
    blocks = blocks_of(raw, 144)
    scales, minimums = six_bit_pairs(blocks[..., 4:16])
    codes = rows_of(planes(blocks[..., 16:].reshape(*blocks.shape[:2], 4, 32), 4))
    minimum = scaled(halves(blocks[..., 2:4]), minimums)
    return Codes(codes, scaled(halves(blocks[..., :2]), scales), np.negative(minimum, out=minimum))


FORMAT = BlockFormat(
    name="Q4_K",
    ggml_type=12,
    block_size=256,
    block_bytes=144,
    group=32,
    code_range=(0, 15),
    has_minimum=True,
    f16_scales=False,
    unpack=unpack,
    layout=BlockLayout(planes=(bytes_at(4, 16, 2),), scale=0, minimum=2, multiples=six_bits(4)),
)
