"""IQ4_NL: 32 weights as indices into sixteen non-linear levels, and one half-float scale.

Block, 18 bytes: f16 scale, 16 bytes of nibbles (low: weights 0-15, high: 16-31). The codes are the levels themselves.
In: raw rows. Out: codes. Source: dequantize_row_iq4_nl in ggml-quants.c.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgeinfer.models.quants._bits import NON_LINEAR_LEVELS, blocks_of, halves, looked_up, planes, rows_of
from edgeinfer.models.quants._format import BlockFormat, Codes
from edgeinfer.models.quants._layout import BlockLayout, halves_at


def unpack(raw: NDArray[np.uint8]) -> Codes:
    """uint8[N, row_bytes] -> the Codes of N rows."""
    blocks = blocks_of(raw, 18)
    codes = rows_of(looked_up(planes(blocks[..., 2:], 4), NON_LINEAR_LEVELS))
    return Codes(codes, halves(blocks[..., :2])[..., 0], None)


FORMAT = BlockFormat(
    name="IQ4_NL",
    ggml_type=20,
    block_size=32,
    block_bytes=18,
    group=32,
    code_range=(-127, 113),
    has_minimum=False,
    f16_scales=True,
    unpack=unpack,
    layout=BlockLayout(planes=(halves_at(2),), scale=0, levels=NON_LINEAR_LEVELS),
)
