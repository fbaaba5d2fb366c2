"""Activations as the integer products read them: where a row's int8 records lie, and the values they represent.

Tokens are cut into tiles of 8, then one of 4, one of the rest (`tile_of`); for kernels with tile registers, tiles of 16
come first if there are MANY tokens. A tile holds, block after block of 32 columns, one record of RECORD_BYTES per
token: 32 int8 codes, then float32 scale, float32 scale * sum, int32 -8 * sum, int32 -128 * sum, float32 scale * (sum of
first 16), the same of the last 16, int32 -(sum of first 16), the same of the last 16. `kernels.matmul.activations`
writes them. Loads no compiler.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

RECORD_BYTES = 64
TILE = 16
"""Tokens of a tile register."""
MANY = 48
"""Fewest tokens for which unpacking panels for tile registers pays, and for which workers share tokens."""
SCALE_AT, SUM_AT, LESS_8_AT, LESS_128_AT, HALF_SUMS_AT, HALF_LESS_AT = 32, 36, 40, 44, 48, 56
SMALLEST = 1e-30
"""Blocks without any larger value are zeros: 127 / largest must stay finite."""


def tiled_tokens(count: int) -> int:
    """How many of `count` tokens are multiplied with tile registers on a CPU that has them."""
    return count // TILE * TILE if count >= MANY else 0


def tile_of(token: int, count: int, n_tiled: int) -> tuple[int, int]:
    """(first token of the tile that holds `token`, its size) when `count` tokens are cut into tiles.

    `n_tiled`: tokens in tile registers: `tiled_tokens` on a CPU that has them, else 0.
    """
    if token < n_tiled:
        return token // TILE * TILE, TILE
    rest = count // 8 * 8
    if token < rest:
        return token // 8 * 8, 8
    if count - rest >= 4:
        if token < rest + 4:
            return rest, 4
        rest += 4
    return rest, count - rest


def read_records(records: NDArray[np.uint8], count: int, n_padded: int, tiled: int = 0) -> NDArray[np.float32]:
    """The values that the records of `count` rows represent: float32[count, n_padded * 32]. For tests and debugging."""
    n_tiled = tiled_tokens(count) * tiled
    values = np.zeros((count, n_padded, 32), np.float32)
    for token in range(count):
        start, size = tile_of(token, count, n_tiled)
        tile = records[start * n_padded * RECORD_BYTES :][: size * n_padded * RECORD_BYTES]
        own = tile.reshape(n_padded, size, RECORD_BYTES)[:, token - start]
        scales = np.ascontiguousarray(own[:, SCALE_AT : SCALE_AT + 4]).view(np.float32)
        values[token] = own[:, :32].view(np.int8) * scales
    return values.reshape(count, -1)
