"""IQ1_S: 256 weights as 11-bit indices of a code book of eight weights, moved by an eighth, in groups of 32.

Block, 50 bytes: f16 unit, 32 bytes of low index bits, 8 words of 16 bits: three high bits of four indices, a 3-bit
scale, and whether an eighth is subtracted or added. Codes are eighths: 8 * entry + 1 or - 1; a group's scale is
unit * (2 * scale + 1) / 8. In: raw rows. Out: codes. Source: dequantize_row_iq1_s in ggml-quants.c.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgeinfer.models.quants._bits import blocks_of, halves
from edgeinfer.models.quants._codebook import eighths, odd_steps, words
from edgeinfer.models.quants._format import BlockFormat, Codes
from edgeinfer.models.quants._layout import BitPiece, BlockLayout, BookEntries, Multiples

_SHIFTS = np.array((0, 3, 6, 9), np.uint16)


def unpack(raw: NDArray[np.uint8]) -> Codes:
    """uint8[N, row_bytes] -> the Codes of N rows."""
    blocks = blocks_of(raw, 50)
    tails = words(blocks[..., 34:], "<u2")
    high = ((tails[..., np.newaxis] >> _SHIFTS) & 7).reshape(*blocks.shape[:2], 32)
    indices = blocks[..., 2:34].astype(np.uint16) | (high << 8)
    codes = eighths(indices, np.repeat(tails >> 15, 4, axis=-1))
    return Codes(codes, odd_steps(halves(blocks[..., :2]), (tails >> 12) & 7), None)


_ENTRIES = BookEntries(
    "iq1_s",
    tuple((BitPiece(2 + entry, 0, 8), BitPiece(34 + entry // 4 * 2, entry % 4 * 3, 3, 8)) for entry in range(32)),
    shifts=tuple((BitPiece(35 + entry // 4 * 2, 7, 1),) for entry in range(32)),
)
_SCALES = Multiples(tuple((BitPiece(34 + 2 * group, 12, 3),) for group in range(8)), halvings=3)

FORMAT = BlockFormat(
    name="IQ1_S",
    ggml_type=19,
    block_size=256,
    block_bytes=50,
    group=32,
    code_range=(-9, 9),
    has_minimum=False,
    f16_scales=False,
    unpack=unpack,
    layout=BlockLayout((), 0, multiples=_SCALES, entries=_ENTRIES),
)
