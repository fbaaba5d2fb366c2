"""F32: 32-bit floats. In: raw rows. Out: a float32 view of them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgeinfer.models.quants._format import FloatFormat


def decode(raw: NDArray[np.uint8]) -> NDArray[np.float32]:
    """uint8[N, 4 * K] -> float32[N, K], a view of `raw` on little-endian machines."""
    return raw.view("<f4").astype(np.float32, copy=False)


FORMAT = FloatFormat(name="F32", ggml_type=0, block_size=1, block_bytes=4, decode=decode)
