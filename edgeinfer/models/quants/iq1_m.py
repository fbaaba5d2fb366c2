"""IQ1_M: 256 weights as 11-bit indices of a code book of eight weights, moved by an eighth, in groups of 16.

Block, 56 bytes: 32 bytes of low index bits, 16 bytes with two nibbles each (three high bits of an index, and whether an
eighth is subtracted or added), 4 words of 16 bits: four 3-bit scales, and four bits of the f16 unit, lowest first.
Codes are eighths: 8 * entry + 1 or - 1; the scale of a group is unit * (2 * scale + 1) / 8.
In: raw rows. Out: codes. Source: dequantize_row_iq1_m in ggml-quants.c.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgeinfer.models.quants._bits import blocks_of, halves
from edgeinfer.models.quants._codebook import eighths, nibbles, odd_steps, words
from edgeinfer.models.quants._format import BlockFormat, Codes
from edgeinfer.models.quants._layout import BitPiece, BlockLayout, BookEntries, Multiples

_SHIFTS = np.array((0, 3, 6, 9), np.uint16)
_UNIT_SHIFTS = np.array((0, 4, 8, 12), np.uint16)


def unpack(raw: NDArray[np.uint8]) -> Codes:
    """uint8[N, row_bytes] -> the Codes of N rows."""
    blocks = blocks_of(raw, 56)
    high = nibbles(blocks[..., 32:48])
    indices = blocks[..., :32].astype(np.uint16) | ((high & 7).astype(np.uint16) << 8)
    tails = words(blocks[..., 48:], "<u2")
    unit = np.bitwise_or.reduce((tails >> 12) << _UNIT_SHIFTS, axis=-1, keepdims=True).astype("<u2")
    steps = ((tails[..., np.newaxis] >> _SHIFTS) & 7).reshape(*blocks.shape[:2], 16)
    return Codes(eighths(indices, high >> 3), odd_steps(halves(unit.view(np.uint8)), steps), None)


_ENTRIES = BookEntries(
    "iq1_s",
    tuple((BitPiece(entry, 0, 8), BitPiece(32 + entry // 2, entry % 2 * 4, 3, 8)) for entry in range(32)),
    shifts=tuple((BitPiece(32 + entry // 2, entry % 2 * 4 + 3, 1),) for entry in range(32)),
)
_SCALES = Multiples(tuple((BitPiece(48 + group // 4 * 2, group % 4 * 3, 3),) for group in range(16)), halvings=3)
_UNIT = tuple(BitPiece(49 + 2 * word, 4, 4, 4 * word) for word in range(4))

FORMAT = BlockFormat(
    name="IQ1_M",
    ggml_type=29,
    block_size=256,
    block_bytes=56,
    group=16,
    code_range=(-9, 9),
    has_minimum=False,
    f16_scales=False,
    unpack=unpack,
    layout=BlockLayout((), _UNIT, multiples=_SCALES, entries=_ENTRIES),
)
