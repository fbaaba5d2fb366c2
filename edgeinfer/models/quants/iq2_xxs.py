"""IQ2_XXS: 256 weights as 8-bit indices of a code book of eight weights, with signs, in groups of 32.

Block, 66 bytes: f16 unit, then 8 bytes for each group: four indices, and 32 bits with four times seven signs, lowest
first, and a 4-bit scale on top. A group's scale is unit * (0.5 + scale) / 4.
In: raw rows. Out: codes. Source: dequantize_row_iq2_xxs in ggml-quants.c.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgeinfer.models.quants._bits import blocks_of, halves
from edgeinfer.models.quants._codebook import book, half_steps, signed, with_parity, words
from edgeinfer.models.quants._format import BlockFormat, Codes
from edgeinfer.models.quants._layout import BitPiece, BlockLayout, BookEntries, Multiples

_SHIFTS = np.array((0, 7, 14, 21), np.uint32)


def unpack(raw: NDArray[np.uint8]) -> Codes:
    """uint8[N, row_bytes] -> the Codes of N rows."""
    blocks = blocks_of(raw, 66)
    groups = blocks[..., 2:].reshape(*blocks.shape[:2], 8, 8)
    tails = words(groups[..., 4:], "<u4")
    codes = book("iq2_xxs")[groups[..., :4]].reshape(len(raw), -1)
    signs = with_parity(tails >> _SHIFTS)
    return Codes(signed(codes, signs), half_steps(halves(blocks[..., :2]), tails[..., 0] >> 28, 0.25), None)


_ENTRIES = BookEntries(
    "iq2_xxs",
    tuple((BitPiece(2 + entry // 4 * 8 + entry % 4, 0, 8),) for entry in range(32)),
    signs=tuple((BitPiece(6 + eight // 4 * 8, eight % 4 * 7, 7),) for eight in range(32)),
)
_SCALES = Multiples(tuple((BitPiece(9 + 8 * group, 4, 4),) for group in range(8)), halvings=3)

FORMAT = BlockFormat(
    name="IQ2_XXS",
    ggml_type=16,
    block_size=256,
    block_bytes=66,
    group=32,
    code_range=(-43, 43),
    has_minimum=False,
    f16_scales=False,
    unpack=unpack,
    layout=BlockLayout((), 0, multiples=_SCALES, entries=_ENTRIES),
)
