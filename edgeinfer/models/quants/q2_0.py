"""Q2_0: 64 weights of two bits, from minus one to two, with one scale.

Block, 18 bytes: f16 scale, 16 bytes of bit pairs, lowest pair of the first byte first; each code plus 1.
In: raw rows. Out: codes. Source: dequantize_row_q2_0 in ggml-quants.c.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgeinfer.models.quants._bits import blocks_of, halves, rows_of
from edgeinfer.models.quants._codebook import fields
from edgeinfer.models.quants._format import BlockFormat, Codes
from edgeinfer.models.quants._layout import BlockLayout, Plane


def unpack(raw: NDArray[np.uint8]) -> Codes:
    """uint8[N, row_bytes] -> the Codes of N rows."""
    blocks = blocks_of(raw, 18)
    codes = rows_of(fields(blocks[..., 2:], 2))
    codes -= 1
    return Codes(codes, np.repeat(halves(blocks[..., :2])[..., 0], 2, axis=-1), None)


FORMAT = BlockFormat(
    name="Q2_0",
    ggml_type=42,
    block_size=64,
    block_bytes=18,
    group=32,
    code_range=(-1, 2),
    has_minimum=False,
    f16_scales=True,
    unpack=unpack,
    layout=BlockLayout(planes=(Plane(2, "bits", ((2, 0), (10, 0))),), scale=0, levels=(-1, 0, 1, 2)),
)
