"""Q5_1: 32 weights as unsigned 5-bit codes, one half-float scale and one half-float minimum.

Block, 24 bytes: f16 scale, f16 minimum, 4 bytes with the fifth bit of each code, 16 bytes of nibbles (low: weights
0-15, high: 16-31). In: raw rows. Out: codes. Source: dequantize_row_q5_1 in ggml-quants.c.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgeinfer.models.quants._bits import blocks_of, halves, high_bits, planes, rows_of
from edgeinfer.models.quants._format import BlockFormat, Codes
from edgeinfer.models.quants._layout import BlockLayout, Plane, halves_at


def unpack(raw: NDArray[np.uint8]) -> Codes:
    """uint8[N, row_bytes] -> the Codes of N rows."""
    blocks = blocks_of(raw, 24)
    codes = rows_of(planes(blocks[..., 8:], 4))
    codes |= rows_of(high_bits(blocks[..., 4:8]))
    return Codes(codes, halves(blocks[..., :2])[..., 0], halves(blocks[..., 2:4])[..., 0])


FORMAT = BlockFormat(
    name="Q5_1",
    ggml_type=7,
    block_size=32,
    block_bytes=24,
    group=32,
    code_range=(0, 31),
    has_minimum=True,
    f16_scales=True,
    unpack=unpack,
    layout=BlockLayout(planes=(halves_at(8), Plane(1, "bits", ((4, 0),))), scale=0, minimum=2),
)
