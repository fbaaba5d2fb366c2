"""IQ2_S: 256 weights as 10-bit indices of a code book of eight weights, with signs, in groups of 16.

Block, 82 bytes: f16 unit, 32 bytes of low index bits, 32 bytes of signs (a bit for each weight), 8 bytes with the two
high bits of four indices each, 8 bytes of 4-bit scales (group 2 * i low, 2 * i + 1 high). A group's scale is
unit * (0.5 + scale) / 4. In: raw rows. Out: codes. Source: dequantize_row_iq2_s in ggml-quants.c.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgeinfer.models.quants._bits import blocks_of, halves
from edgeinfer.models.quants._codebook import book, fields, half_steps, nibbles, signed
from edgeinfer.models.quants._format import BlockFormat, Codes
from edgeinfer.models.quants._layout import BitPiece, BlockLayout, BookEntries, Multiples


def unpack(raw: NDArray[np.uint8]) -> Codes:
    """uint8[N, row_bytes] -> the Codes of N rows."""
    blocks = blocks_of(raw, 82)
    indices = blocks[..., 2:34].astype(np.uint16) | (fields(blocks[..., 66:74], 2).astype(np.uint16) << 8)
    codes = book("iq2_s")[indices].reshape(len(raw), -1)
    scale = half_steps(halves(blocks[..., :2]), nibbles(blocks[..., 74:]), 0.25)
    return Codes(signed(codes, blocks[..., 34:66]), scale, None)


_ENTRIES = BookEntries(
    "iq2_s",
    tuple((BitPiece(2 + entry, 0, 8), BitPiece(66 + entry // 4, entry % 4 * 2, 2, 8)) for entry in range(32)),
    signs=tuple((BitPiece(34 + eight, 0, 8),) for eight in range(32)),
)
_SCALES = Multiples(tuple((BitPiece(74 + group // 2, group % 2 * 4, 4),) for group in range(16)), halvings=3)

FORMAT = BlockFormat(
    name="IQ2_S",
    ggml_type=22,
    block_size=256,
    block_bytes=82,
    group=16,
    code_range=(-43, 43),
    has_minimum=False,
    f16_scales=False,
    unpack=unpack,
    layout=BlockLayout((), 0, multiples=_SCALES, entries=_ENTRIES),
)
