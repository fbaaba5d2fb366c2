"""IQ4_XS: 256 weights as indices into sixteen non-linear levels, in groups of 32 with a signed 6-bit scale.

Block, 136 bytes: f16 unit, 2 bytes with the high bits of the scales (pair g is group g), 4 bytes with their low
nibbles (group 2 * i low, 2 * i + 1 high in byte i), 128 bytes of nibbles (per group 16 bytes; low: weights 0-15, high:
16-31); each scale plus 32. In: raw rows. Out: codes. Source: dequantize_row_iq4_xs in ggml-quants.c.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgeinfer.models.quants._bits import NON_LINEAR_LEVELS, blocks_of, halves, looked_up, planes, rows_of, scaled
from edgeinfer.models.quants._format import BlockFormat, Codes
from edgeinfer.models.quants._layout import BitPiece, BlockLayout, Multiples, Plane

_SCALES = tuple(
    (BitPiece(4 + group // 2, 4 * (group % 2), 4), BitPiece(2 + group // 4, 2 * (group % 4), 2, 4))
    for group in range(8)
)


def unpack(raw: NDArray[np.uint8]) -> Codes:
    """uint8[N, row_bytes] -> the Codes of N rows."""
    blocks = blocks_of(raw, 136)
    codes = rows_of(looked_up(planes(blocks[..., 8:].reshape(*blocks.shape[:2], 8, 16), 4), NON_LINEAR_LEVELS))
    high_pairs = planes(blocks[..., 2:4, np.newaxis], 2).reshape(*blocks.shape[:2], 8)
    low_nibbles = planes(blocks[..., 4:8, np.newaxis], 4).reshape(*blocks.shape[:2], 8)
    factors = (low_nibbles | (high_pairs << 4)).view(np.int8) - np.int8(32)
    return Codes(codes, scaled(halves(blocks[..., :2]), factors), None)


FORMAT = BlockFormat(
    name="IQ4_XS",
    ggml_type=23,
    block_size=256,
    block_bytes=136,
    group=32,
    code_range=(-127, 113),
    has_minimum=False,
    f16_scales=False,
    unpack=unpack,
    layout=BlockLayout(
        planes=(Plane(4, "halves", tuple((8 + 16 * group, 0) for group in range(8))),),
        scale=0,
        multiples=Multiples(_SCALES, offset=32),
        levels=NON_LINEAR_LEVELS,
    ),
)
