"""IQ3_XXS: 256 weights as 8-bit indices of a code book of four weights, with signs, in groups of 32.

Block, 98 bytes: f16 unit, 64 indices, and for each group 32 bits with four times seven signs, lowest first, and a 4-bit
scale on top. A group's scale is unit * (0.5 + scale) / 2.
In: raw rows. Out: codes. Source: dequantize_row_iq3_xxs in ggml-quants.c.
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
    blocks = blocks_of(raw, 98)
    tails = words(blocks[..., 66:], "<u4")
    codes = book("iq3_xxs")[blocks[..., 2:66]].reshape(len(raw), -1)
    signs = with_parity(tails[..., np.newaxis] >> _SHIFTS)
    return Codes(signed(codes, signs), half_steps(halves(blocks[..., :2]), tails >> 28, 0.5), None)


_ENTRIES = BookEntries(
    "iq3_xxs",
    tuple((BitPiece(2 + entry, 0, 8),) for entry in range(64)),
    signs=tuple((BitPiece(66 + eight // 4 * 4, eight % 4 * 7, 7),) for eight in range(32)),
)
_SCALES = Multiples(tuple((BitPiece(69 + 4 * group, 4, 4),) for group in range(8)), halvings=2)

FORMAT = BlockFormat(
    name="IQ3_XXS",
    ggml_type=18,
    block_size=256,
    block_bytes=98,
    group=32,
    code_range=(-62, 62),
    has_minimum=False,
    f16_scales=False,
    unpack=unpack,
    layout=BlockLayout((), 0, multiples=_SCALES, entries=_ENTRIES),
)
