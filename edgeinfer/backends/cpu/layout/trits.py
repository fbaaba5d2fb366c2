"""Ternary codes in panels: five to a byte, a record of 256 columns of 16 rows at a time.

Columns go by fours, a byte for each row and column (64 bytes). Of the 16 fours of a pair of blocks, 15 lie in three
vectors of 64 bytes, whose bytes are five base-3 digits as a fraction of 256, first digit first: digit n is the whole
part of 3 * (byte * 3**n mod 256) / 256. The last fours of the four pairs share one vector, two bits each, the first
pair's lowest. A digit is the code plus 1. In: codes. Out: a record's bytes, those after the units.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

FOURS, DIGITS, VECTOR = 16, 5, 64
PAIR_BYTES = FOURS // DIGITS * VECTOR
"""Of the vectors that belong to a pair alone."""
SHARED_AT = 4 * PAIR_BYTES
"""Byte offset, among a record's codes, of the vector that the pairs share."""
BLOCK_BYTES = (SHARED_AT + VECTOR) // 8
"""Bytes for 32 columns."""
_PLACES = np.array([81, 27, 9, 3, 1], np.uint16)


def pack_trits(fours: NDArray[np.uint8], out: NDArray[np.uint8]) -> None:
    """Write digits uint8[panels, records, 4 pairs, 16 fours, 64] to out uint8[panels, records, 8 * BLOCK_BYTES]."""
    digits = fours[..., : FOURS - 1, :].reshape(*fours.shape[:3], FOURS // DIGITS, DIGITS, VECTOR)
    numbers = np.einsum("...dv,d->...v", digits.astype(np.uint16), _PLACES)
    fractions = (numbers * 256 + 242) // 243
    out[..., :SHARED_AT] = fractions.reshape(*fours.shape[:2], SHARED_AT)
    last = fours[..., FOURS - 1, :] << np.arange(0, 8, 2, dtype=np.uint8)[:, np.newaxis]
    out[..., SHARED_AT:] = np.bitwise_or.reduce(last, axis=2)
