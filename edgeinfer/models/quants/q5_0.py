"""Q5_0: 32 weights as signed 5-bit codes and one half-float scale.

Block, 22 bytes: f16 scale, 4 bytes with the fifth bit of each code, 16 bytes of nibbles (low: weights 0-15,
high: 16-31), each code plus 16. In: raw rows. Out: codes. Source: dequantize_row_q5_0 in ggml-quants.c.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgeinfer.models.quants._bits import blocks_of, halves, high_bits, planes, rows_of
from edgeinfer.models.quants._format import BlockFormat, Codes
from edgeinfer.models.quants._layout import BlockLayout, Plane, halves_at


def unpack(raw: NDArray[np.uint8]) -> Codes:
    """uint8[N, row_bytes] -> the Codes of N rows."""
    blocks = blocks_of(raw, 22)
    codes = rows_of(planes(blocks[..., 6:], 4))
    codes |= rows_of(high_bits(blocks[..., 2:6]))
    codes -= 16
    return Codes(codes, halves(blocks[..., :2])[..., 0], None)


FORMAT = BlockFormat(
    name="Q5_0",
    ggml_type=6,
    block_size=32,
    block_bytes=22,
    group=32,
    code_range=(-16, 15),
    has_minimum=False,
    f16_scales=True,
    unpack=unpack,
    layout=BlockLayout(planes=(halves_at(6), Plane(1, "bits", ((2, 0),))), scale=0),
)
