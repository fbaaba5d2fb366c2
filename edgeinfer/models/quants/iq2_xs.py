"""IQ2_XS: 256 weights as 9-bit indices of a code book of eight weights, with signs, in groups of 16.

Block, 74 bytes: f16 unit, 32 words of 16 bits (index, then seven signs), 8 bytes of 4-bit scales (group 2 * i low,
2 * i + 1 high). A group's scale is unit * (0.5 + scale) / 4.
In: raw rows. Out: codes. Source: dequantize_row_iq2_xs in ggml-quants.c.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgeinfer.models.quants._bits import blocks_of, halves
from edgeinfer.models.quants._codebook import book, half_steps, nibbles, signed, with_parity, words
from edgeinfer.models.quants._format import BlockFormat, Codes
from edgeinfer.models.quants._layout import BitPiece, BlockLayout, BookEntries, Multiples


def unpack(raw: NDArray[np.uint8]) -> Codes:
    """uint8[N, row_bytes] -> the Codes of N rows."""
    blocks = blocks_of(raw, 74)
    entries = words(blocks[..., 2:66], "<u2")
    codes = book("iq2_xs")[entries & 511].reshape(len(raw), -1)
    scale = half_steps(halves(blocks[..., :2]), nibbles(blocks[..., 66:]), 0.25)
    return Codes(signed(codes, with_parity(entries >> 9)), scale, None)


_ENTRIES = BookEntries(
    "iq2_xs",
    tuple((BitPiece(2 + 2 * entry, 0, 9),) for entry in range(32)),
    signs=tuple((BitPiece(2 + 2 * eight, 9, 7),) for eight in range(32)),
)
_SCALES = Multiples(tuple((BitPiece(66 + group // 2, group % 2 * 4, 4),) for group in range(16)), halvings=3)

FORMAT = BlockFormat(
    name="IQ2_XS",
    ggml_type=17,
    block_size=256,
    block_bytes=74,
    group=16,
    code_range=(-43, 43),
    has_minimum=False,
    f16_scales=False,
    unpack=unpack,
    layout=BlockLayout((), 0, multiples=_SCALES, entries=_ENTRIES),
)
