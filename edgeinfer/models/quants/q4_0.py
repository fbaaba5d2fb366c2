"""Q4_0: 32 weights as signed 4-bit codes and one half-float scale.

Block, 18 bytes: f16 scale, 16 bytes of nibbles (low: weights 0-15, high: 16-31), each code plus 8.
In: raw rows. Out: codes. Source: dequantize_row_q4_0 in ggml-quants.c.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgeinfer.models.quants._bits import blocks_of, halves, planes, rows_of
from edgeinfer.models.quants._format import BlockFormat, Codes
from edgeinfer.models.quants._layout import BlockLayout, halves_at


def unpack(raw: NDArray[np.uint8]) -> Codes:
    """uint8[N, row_bytes] -> the Codes of N rows."""
    blocks = blocks_of(raw, 18)
    codes = rows_of(planes(blocks[..., 2:], 4))
    codes -= 8
    return Codes(codes, halves(blocks[..., :2])[..., 0], None)


FORMAT = BlockFormat(
    name="Q4_0",
    ggml_type=2,
    block_size=32,
    block_bytes=18,
    group=32,
    code_range=(-8, 7),
    has_minimum=False,
    f16_scales=True,
    unpack=unpack,
    layout=BlockLayout(planes=(halves_at(2),), scale=0),
)
