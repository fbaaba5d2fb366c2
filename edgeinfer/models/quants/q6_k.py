"""Q6_K: 256 weights as signed 6-bit codes in groups of 16, each with an int8 scale.

Block, 210 bytes: 128 bytes of low nibbles (two halves of 64 bytes; low nibbles are a half's weights 0-63, high nibbles
64-127), 64 bytes of high bit pairs (two halves of 32 bytes; pair p of byte i is weight 32 * p + i of the half), 16
signed scales, f16 unit; each code plus 32. In: raw rows. Out: codes. Source: dequantize_row_q6_K in ggml-quants.c.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgeinfer.models.quants._bits import blocks_of, halves, planes, rows_of, scaled
from edgeinfer.models.quants._format import BlockFormat, Codes
from edgeinfer.models.quants._layout import BitPiece, BlockLayout, Multiples, Plane, bytes_at

_NIBBLE_RUNS = tuple((64 * half + 32 * place, 4 * high) for half in (0, 1) for high in (0, 1) for place in (0, 1))


def unpack(raw: NDArray[np.uint8]) -> Codes:
    """uint8[N, row_bytes] -> the Codes of N rows."""
    blocks = blocks_of(raw, 210)
    codes = rows_of(planes(blocks[..., :128].reshape(*blocks.shape[:2], 2, 64), 4))
    high = rows_of(planes(blocks[..., 128:192].reshape(*blocks.shape[:2], 2, 32), 2))
    high <<= 4
    codes |= high
    codes -= 32
    factors = blocks[..., 192:208].view(np.int8)
    return Codes(codes, scaled(halves(blocks[..., 208:210]), factors), None)


FORMAT = BlockFormat(
    name="Q6_K",
    ggml_type=14,
    block_size=256,
    block_bytes=210,
    group=16,
    code_range=(-32, 31),
    has_minimum=False,
    f16_scales=False,
    unpack=unpack,
    layout=BlockLayout(
        planes=(Plane(4, "bytes", _NIBBLE_RUNS), bytes_at(2, 128, 4)),
        scale=208,
        multiples=Multiples(tuple((BitPiece(192 + group, 0, 8),) for group in range(16)), signed=True),
    ),
)
