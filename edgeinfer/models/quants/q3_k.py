"""Q3_K: 256 weights as signed 3-bit codes in groups of 16, each with a signed 6-bit scale.

Block, 110 bytes: 32 bytes of high bits (bit p of byte i is weight 32 * p + i; a clear bit subtracts 4), 64 bytes of
low bit pairs (two halves of 32 bytes; pair p of byte i is weight 32 * p + i of the half), 12 bytes of scales, f16
unit. Scale g plus 32 has its low nibble in nibble g // 8 of byte g % 8 and its high bits in pair g // 4 of byte
8 + g % 4. In: raw rows. Out: codes. Source: dequantize_row_q3_K in ggml-quants.c.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgeinfer.models.quants._bits import blocks_of, halves, planes, rows_of, scaled
from edgeinfer.models.quants._format import BlockFormat, Codes
from edgeinfer.models.quants._layout import BitPiece, BlockLayout, Multiples, bytes_at

_SCALES = tuple(
    (BitPiece(96 + group % 8, 4 * (group // 8), 4), BitPiece(104 + group % 4, 2 * (group // 4), 2, 4))
    for group in range(16)
)


def unpack(raw: NDArray[np.uint8]) -> Codes:
    """uint8[N, row_bytes] -> the Codes of N rows."""
    blocks = blocks_of(raw, 110)
    codes = rows_of(planes(blocks[..., 32:96].reshape(*blocks.shape[:2], 2, 32), 2))
    high = rows_of(planes(blocks[..., :32], 1))
    high <<= 2
    codes += high
    codes -= 4
    low_nibbles = planes(blocks[..., 96:104], 4).reshape(*blocks.shape[:2], 16)
    high_pairs = planes(blocks[..., 104:108], 2).reshape(*blocks.shape[:2], 16)
    factors = (low_nibbles | (high_pairs << 4)).view(np.int8) - np.int8(32)
    return Codes(codes, scaled(halves(blocks[..., 108:110]), factors), None)


FORMAT = BlockFormat(
    name="Q3_K",
    ggml_type=11,
    block_size=256,
    block_bytes=110,
    group=16,
    code_range=(-4, 3),
    has_minimum=False,
    f16_scales=False,
    unpack=unpack,
    layout=BlockLayout(
        planes=(bytes_at(2, 32, 4), bytes_at(1, 0, 8)), scale=108, multiples=Multiples(_SCALES, offset=32)
    ),
)
