"""BF16: the upper half of a 32-bit float. In: raw rows. Out: float32, exact."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgeinfer.models.quants._format import FloatFormat


def decode(raw: NDArray[np.uint8]) -> NDArray[np.float32]:
    """uint8[N, 2 * K] -> float32[N, K]."""
    bits = raw.view("<u2").astype(np.uint32)
    bits <<= 16
    return bits.view(np.float32)


FORMAT = FloatFormat(name="BF16", ggml_type=30, block_size=1, block_bytes=2, decode=decode)
