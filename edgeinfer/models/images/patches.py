"""Cuts images into tiles and patches.

In: images whose sizes are multiples of the cuts. Out: uint8 tiles; float32 rows of patches, each its red numbers row by
row, then green, then blue, as the kernel [out, 3, patch, patch] of a convolution reads them when it is flattened.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgeinfer.models.images.resizing import Floats, Pixels, Size


def tiles_of(pixels: Pixels, tile: Size) -> Pixels:
    """The tiles of uint8[H, W, 3], row by row: uint8[N, height, width, 3]."""
    height, width = tile
    down, across = pixels.shape[0] // height, pixels.shape[1] // width
    cut = pixels[: down * height, : across * width].reshape(down, height, across, width, 3)
    return np.ascontiguousarray(cut.transpose(0, 2, 1, 3, 4)).reshape(-1, height, width, 3)


def patches_of(image: Floats, patch: int) -> Floats:
    """The patches of float32[H, W, 3], row by row: float32[N, 3 * patch * patch]."""
    height, width, _ = image.shape
    cut = image.reshape(height // patch, patch, width // patch, patch, 3)
    return np.ascontiguousarray(cut.transpose(0, 2, 4, 1, 3)).reshape(-1, 3 * patch * patch)


def block_order(grid: Size, block: int) -> NDArray[np.int64]:
    """Patches of a grid such that those of each block x block square follow one another, row by row: int64[N]."""
    down, across = grid
    numbers = np.arange(down * across).reshape(down // block, block, across // block, block)
    return numbers.transpose(0, 2, 1, 3).reshape(-1)
