"""Cuts images into tiles and patches.

In: images whose sizes are multiples of the cuts. Out: uint8 tiles; rows of patches, each its red numbers row by row,
then green, then blue, as the kernel [out, 3, patch, patch] of a convolution reads them when it is flattened.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from edgeinfer.models.images.resizing import Floats, Pixels, Size, normalised

Number = TypeVar("Number", np.uint8, np.float32)


def tiles_of(pixels: Pixels, tile: Size) -> Pixels:
    """The tiles of uint8[H, W, 3], row by row: uint8[N, height, width, 3]."""
    height, width = tile
    down, across = pixels.shape[0] // height, pixels.shape[1] // width
    cut = pixels[: down * height, : across * width].reshape(down, height, across, width, 3)
    return np.ascontiguousarray(cut.transpose(0, 2, 1, 3, 4)).reshape(-1, height, width, 3)


def patches_of(image: NDArray[Number], patch: int) -> NDArray[Number]:
    """The patches of an image [H, W, 3], row by row: [N, 3 * patch * patch]."""
    height, width, _ = image.shape
    cut = image.reshape(height // patch, patch, width // patch, patch, 3)
    return np.ascontiguousarray(cut.transpose(0, 2, 4, 1, 3)).reshape(-1, 3 * patch * patch)


def normalised_patches(
    pixels: Pixels,
    patch: int,
    mean: Sequence[float],
    deviation: Sequence[float],
    order: NDArray[np.int64] | None = None,
) -> Floats:
    """The patches of `normalised` pixels, row by row or in another order: float32[N, 3 * patch * patch].

    They are cut before they become floats, which take four times as much memory.
    """
    patches = patches_of(pixels, patch)
    if order is not None:
        patches = patches[order]
    channels_last = patches.reshape(len(patches), 3, -1).swapaxes(1, 2)
    return normalised(channels_last, mean, deviation).swapaxes(1, 2).reshape(patches.shape)


def block_order(grid: Size, block: int) -> NDArray[np.int64]:
    """Patches of a grid such that those of each block x block square follow one another, row by row: int64[N]."""
    down, across = grid
    numbers = np.arange(down * across).reshape(down // block, block, across // block, block)
    return numbers.transpose(0, 2, 1, 3).reshape(-1)
