"""Q8_0: 32 weights as int8 and one half-float scale.

Block, 34 bytes: f16 scale, 32 signed bytes.
In: raw rows. Out: codes. Source: dequantize_row_q8_0 in ggml-quants.c.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgeinfer.models.quants._bits import blocks_of, halves, rows_of
from edgeinfer.models.quants._format import BlockFormat, Codes
from edgeinfer.models.quants._layout import BlockLayout, bytes_at


def unpack(raw: NDArray[np.uint8]) -> Codes:
    """uint8[N, row_bytes] -> the Codes of N rows."""
    blocks = blocks_of(raw, 34)
    codes = rows_of(blocks[..., 2:].copy())
    return Codes(codes, halves(blocks[..., :2])[..., 0], None)


FORMAT = BlockFormat(
    name="Q8_0",
    ggml_type=8,
    block_size=32,
    block_bytes=34,
    group=32,
    code_range=(-128, 127),
    has_minimum=False,
    f16_scales=True,
    unpack=unpack,
    layout=BlockLayout(planes=(bytes_at(8, 2, 1, 1),), scale=0, signed=True),
)
