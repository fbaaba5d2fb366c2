"""TQ1_0: 256 ternary weights, five to a byte, with one scale.

Block, 54 bytes: 32 bytes of five weights, 16 bytes of five, 4 bytes of four, f16 scale. Digit n of byte i in a run of B
bytes is weight B * n + i of the run. A byte is its base-3 digits as a fraction of 256, first digit first: digit n is
the whole part of 3 * (byte * 3**n mod 256) / 256; each code plus 1.
In: raw rows. Out: codes. Source: dequantize_row_tq1_0 in ggml-quants.c.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgeinfer.models.quants._bits import blocks_of, halves, rows_of
from edgeinfer.models.quants._format import BlockFormat, Codes

_POWERS = np.array((1, 3, 9, 27, 81), np.uint8)


def unpack(raw: NDArray[np.uint8]) -> Codes:
    """uint8[N, row_bytes] -> the Codes of N rows."""
    blocks = blocks_of(raw, 54)
    runs = ((0, 32, 5), (32, 48, 5), (48, 52, 4))
    digits = [
        (blocks[..., np.newaxis, first:last] * _POWERS[:count, np.newaxis]).reshape(*blocks.shape[:2], -1)
        for first, last, count in runs
    ]
    codes = rows_of(((np.concatenate(digits, axis=-1).astype(np.uint16) * 3) >> 8).astype(np.uint8))
    codes -= 1
    return Codes(codes, np.repeat(halves(blocks[..., 52:])[..., 0], 8, axis=-1), None)


FORMAT = BlockFormat(
    name="TQ1_0",
    ggml_type=34,
    block_size=256,
    block_bytes=54,
    group=32,
    code_range=(-1, 1),
    has_minimum=False,
    f16_scales=True,
    unpack=unpack,
)
