"""Q2_K: 256 weights as 2-bit codes in groups of 16, each with a 4-bit scale and a 4-bit minimum.

Block, 84 bytes: 16 bytes (low nibble scale, high nibble minimum of a group), 64 bytes of codes (two halves of 32
bytes; bit pair p of byte i is weight 32 * p + i of the half), f16 unit of the scales, f16 unit of the minimums.
In: raw rows. Out: codes. Source: dequantize_row_q2_K in ggml-quants.c.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgeinfer.models.quants._bits import blocks_of, halves, planes, rows_of, scaled
from edgeinfer.models.quants._format import BlockFormat, Codes
from edgeinfer.models.quants._layout import BitPiece, BlockLayout, Multiples, bytes_at


def unpack(raw: NDArray[np.uint8]) -> Codes:
    """uint8[N, row_bytes] -> the Codes of N rows."""
    blocks = blocks_of(raw, 84)
    factors = blocks[..., :16]
    codes = rows_of(planes(blocks[..., 16:80].reshape(*blocks.shape[:2], 2, 32), 2))
    minimum = scaled(halves(blocks[..., 82:84]), factors >> 4)
    return Codes(codes, scaled(halves(blocks[..., 80:82]), factors & 0x0F), np.negative(minimum, out=minimum))


FORMAT = BlockFormat(
    name="Q2_K",
    ggml_type=10,
    block_size=256,
    block_bytes=84,
    group=16,
    code_range=(0, 3),
    has_minimum=True,
    f16_scales=False,
    unpack=unpack,
    layout=BlockLayout(
        planes=(bytes_at(2, 16, 4),),
        scale=80,
        minimum=82,
        multiples=Multiples(
            tuple((BitPiece(group, 0, 4),) for group in range(16)),
            tuple((BitPiece(group, 4, 4),) for group in range(16)),
        ),
    ),
)
