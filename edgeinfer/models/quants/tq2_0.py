"""TQ2_0: 256 ternary weights of 2 bits with one scale.

Block, 66 bytes: 64 bytes of bit pairs (two halves of 32 bytes; pair p of byte i is weight 32 * p + i of the half), f16
scale; each code plus 1. In: raw rows. Out: codes. Source: dequantize_row_tq2_0 in ggml-quants.c.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgeinfer.models.quants._bits import blocks_of, halves, planes, rows_of
from edgeinfer.models.quants._format import BlockFormat, Codes
from edgeinfer.models.quants._layout import BlockLayout, bytes_at


def unpack(raw: NDArray[np.uint8]) -> Codes:
    """uint8[N, row_bytes] -> the Codes of N rows."""
    blocks = blocks_of(raw, 66)
    codes = rows_of(planes(blocks[..., :64].reshape(*blocks.shape[:2], 2, 32), 2))
    codes -= 1
    return Codes(codes, np.repeat(halves(blocks[..., 64:])[..., 0], 8, axis=-1), None)


FORMAT = BlockFormat(
    name="TQ2_0",
    ggml_type=35,
    block_size=256,
    block_bytes=66,
    group=32,
    code_range=(-1, 2),
    has_minimum=False,
    f16_scales=True,
    unpack=unpack,
    layout=BlockLayout(planes=(bytes_at(2, 0, 4),), scale=64, levels=(-1, 0, 1, 2)),
)
