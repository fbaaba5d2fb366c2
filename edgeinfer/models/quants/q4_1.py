"""Q4_1: 32 weights as unsigned 4-bit codes, one half-float scale and one half-float minimum.

Block, 20 bytes: f16 scale, f16 minimum, 16 bytes of nibbles (low: weights 0-15, high: 16-31).
In: raw rows. Out: codes. Source: dequantize_row_q4_1 in ggml-quants.c.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgeinfer.models.quants._bits import blocks_of, halves, planes, rows_of
from edgeinfer.models.quants._format import BlockFormat, Codes
from edgeinfer.models.quants._layout import BlockLayout, halves_at


def unpack(raw: NDArray[np.uint8]) -> Codes:
    """uint8[N, row_bytes] -> the Codes of N rows."""
    blocks = blocks_of(raw, 20)
    codes = rows_of(planes(blocks[..., 4:], 4))
    return Codes(codes, halves(blocks[..., :2])[..., 0], halves(blocks[..., 2:4])[..., 0])


FORMAT = BlockFormat(
    name="Q4_1",
    ggml_type=3,
    block_size=32,
    block_bytes=20,
    group=32,
    code_range=(0, 15),
    has_minimum=True,
    f16_scales=True,
    unpack=unpack,
    layout=BlockLayout(planes=(halves_at(4),), scale=0, minimum=2),
)
