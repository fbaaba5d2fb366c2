"""The grid of square tiles whose shape is closest to an image's, as InternVL and LFM2-VL choose it.

In: the size of an image, the side of a tile, how many tiles there may be. Out: tiles down and across.
"""

from __future__ import annotations

from edgeinfer.models.vision.encoder import Size


def closest_grid(size: Size, side: int, n_tiles: tuple[int, int]) -> Size:
    """Tiles down and across, `n_tiles` at least and at most; of grids of one shape the last one that is half filled."""
    height, width = size
    least, most = n_tiles
    found, distance = (1, 1), float("inf")
    for down, across in _grids(least, most):
        own = abs(width / height - across / down)
        if own < distance or (own == distance and height * width > 0.5 * side * side * down * across):
            found, distance = (down, across), own
    return found


def _grids(least: int, most: int) -> list[Size]:
    """All grids by number of tiles, then by width."""
    sizes = range(1, most + 1)
    pairs = [(down, across) for across in sizes for down in sizes if least <= down * across <= most]
    return sorted(pairs, key=lambda pair: pair[0] * pair[1])
