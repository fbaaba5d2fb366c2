"""MXFP4: 32 weights as 4-bit floats (e2m1) with one shared power of two (e8m0).

Block, 17 bytes: exponent, 16 bytes of nibbles (low: weights 0-15, high: 16-31). The codes are twice the e2m1 values,
so that they are integers, and the scale is half of 2 ** (exponent - 127). In: raw rows. Out: codes.
Source: OCP Microscaling Formats (MX) 1.0; dequantize_row_mxfp4 in ggml-quants.c, whose exponent 255 is a number too.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgeinfer.models.quants._bits import blocks_of, looked_up, planes, rows_of
from edgeinfer.models.quants._format import BlockFormat, Codes
from edgeinfer.models.quants._layout import BlockLayout, halves_at

DOUBLED_LEVELS = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)


def unpack(raw: NDArray[np.uint8]) -> Codes:
    """uint8[N, row_bytes] -> the Codes of N rows."""
    blocks = blocks_of(raw, 17)
    codes = rows_of(looked_up(planes(blocks[..., 1:], 4), DOUBLED_LEVELS))
    # 2 ** -128 and 2 ** -127 are subnormal in float32; ldexp rounds nothing here.
    scale = np.ldexp(np.float32(1), blocks[..., 0].astype(np.int32) - 128)
    return Codes(codes, scale, None)


FORMAT = BlockFormat(
    name="MXFP4",
    ggml_type=39,
    block_size=32,
    block_bytes=17,
    group=32,
    code_range=(-12, 12),
    has_minimum=False,
    f16_scales=False,
    unpack=unpack,
    layout=BlockLayout(planes=(halves_at(1),), scale=0, unit="e8m0", levels=DOUBLED_LEVELS),
)
