"""Q1_0: 128 weights of one bit, minus or plus the scale.

Block, 18 bytes: f16 scale, 16 bytes of bits, lowest bit of the first byte first; a set bit is plus.
In: raw rows. Out: codes. Source: dequantize_row_q1_0 in ggml-quants.c.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgeinfer.models.quants._bits import blocks_of, halves, rows_of
from edgeinfer.models.quants._format import BlockFormat, Codes
from edgeinfer.models.quants._layout import BlockLayout, Plane


def unpack(raw: NDArray[np.uint8]) -> Codes:
    """uint8[N, row_bytes] -> the Codes of N rows."""
    blocks = blocks_of(raw, 18)
    codes = rows_of(np.unpackbits(blocks[..., 2:], axis=-1, bitorder="little"))
    codes <<= 1
    codes -= 1
    return Codes(codes, np.repeat(halves(blocks[..., :2])[..., 0], 4, axis=-1), None)


FORMAT = BlockFormat(
    name="Q1_0",
    ggml_type=41,
    block_size=128,
    block_bytes=18,
    group=32,
    code_range=(-1, 1),
    has_minimum=False,
    f16_scales=True,
    unpack=unpack,
    layout=BlockLayout(
        planes=(Plane(1, "bits", tuple((2 + 4 * run, 0) for run in range(4))),), scale=0, levels=(-1, 1)
    ),
)
