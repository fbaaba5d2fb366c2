"""IQ3_S: 256 weights as 9-bit indices of a code book of four weights, with signs, in groups of 32.

Block, 110 bytes: f16 unit, 64 bytes of low index bits, 8 bytes with the high bits of eight indices each, 32 bytes of
signs (a bit for each weight), 4 bytes of 4-bit scales (group 2 * i low, 2 * i + 1 high). A group's scale is
unit * (1 + 2 * scale). In: raw rows. Out: codes. Source: dequantize_row_iq3_s in ggml-quants.c.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgeinfer.models.quants._bits import blocks_of, halves, scaled
from edgeinfer.models.quants._codebook import book, fields, nibbles, signed
from edgeinfer.models.quants._format import BlockFormat, Codes
from edgeinfer.models.quants._layout import BitPiece, BlockLayout, BookEntries, Multiples


def unpack(raw: NDArray[np.uint8]) -> Codes:
    """uint8[N, row_bytes] -> the Codes of N rows."""
    blocks = blocks_of(raw, 110)
    indices = blocks[..., 2:66].astype(np.uint16) | (fields(blocks[..., 66:74], 1).astype(np.uint16) << 8)
    codes = book("iq3_s")[indices].reshape(len(raw), -1)
    scale = scaled(halves(blocks[..., :2]), 2 * nibbles(blocks[..., 106:]) + 1)
    return Codes(signed(codes, blocks[..., 74:106]), scale, None)


_ENTRIES = BookEntries(
    "iq3_s",
    tuple((BitPiece(2 + entry, 0, 8), BitPiece(66 + entry // 8, entry % 8, 1, 8)) for entry in range(64)),
    signs=tuple((BitPiece(74 + eight, 0, 8),) for eight in range(32)),
)
_SCALES = Multiples(tuple((BitPiece(106 + group // 2, group % 2 * 4, 4),) for group in range(8)), halvings=0)

FORMAT = BlockFormat(
    name="IQ3_S",
    ggml_type=21,
    block_size=256,
    block_bytes=110,
    group=32,
    code_range=(-15, 15),
    has_minimum=False,
    f16_scales=False,
    unpack=unpack,
    layout=BlockLayout((), 0, multiples=_SCALES, entries=_ENTRIES),
)
