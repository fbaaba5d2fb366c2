"""The checksum of a bundle: sums of its 64-bit words, column by column, and a hash of the sums.

In: bytes. Out: a number that is never 0. Meant for disks that err, not for forgers; made to cost little beside reading:
the sums run at the speed of memory and hold no interpreter lock. Any single changed word changes it.
"""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

WORDS = 1021
"""Words of a row of the sum. A prime, so that pages that changed places land in other columns."""
WORD = np.dtype("<u8")


def checksum(data: NDArray[np.uint8]) -> int:
    """The checksum of uint8[n], contiguous: 1 to 2**64 - 1."""
    n_words = len(data) // WORD.itemsize
    n_rows, n_rest = divmod(n_words, WORDS)
    words = data[: n_words * WORD.itemsize].view(WORD)
    sums = np.add.reduce(words[: n_rows * WORDS].reshape(n_rows, WORDS), axis=0, dtype=WORD)
    sums[:n_rest] += words[n_rows * WORDS :]
    digest = hashlib.blake2b(sums, digest_size=8, salt=len(data).to_bytes(8, "little"))
    digest.update(data[n_words * WORD.itemsize :].tobytes())
    return int.from_bytes(digest.digest(), "little") or 1
