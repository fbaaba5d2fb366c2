"""How families of models cut an image into tiles: which grid, and the tiles.

In: an image or its size (height, width), what a model's files say. Out: grids (rows, columns); uint8 tiles, row by row,
and the whole image in one more where a family has it. The grids depend on sizes alone, so that tokens are counted
before anything is decoded. The same as the image processors of transformers, which each function names.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from edgeinfer.models.images.patches import tiles_of
from edgeinfer.models.images.resizing import FilterName, Pixels, PixelSource, Size, padded, resized
from edgeinfer.models.images.sizes import best_canvas, lfm2_size, size_on_canvas

Grid = tuple[int, int]
"""Rows and columns of tiles."""
IDEFICS_LARGEST = 4096
"""Most pixels along an edge."""


def idefics_sizes(size: Size, side: int, longest: int) -> tuple[Size, Size]:
    """The size with `longest` pixels along the longer edge, and then that in whole tiles of side x side.

    Idefics 3, SmolVLM, Granite Docling: `resize` and `resize_for_vision_encoder` of Idefics3ImageProcessor.
    """
    height, width = _with_longest(size, longest)
    if max(height, width) > IDEFICS_LARGEST:
        ratio = width / height
        if width >= height:
            height, width = max(int(IDEFICS_LARGEST / ratio), 1), IDEFICS_LARGEST
        else:
            height, width = IDEFICS_LARGEST, max(int(IDEFICS_LARGEST * ratio), 1)
    ratio = width / height
    if width >= height:
        across = math.ceil(width / side)
        down = math.ceil(int(across * side / ratio) / side)
    else:
        down = math.ceil(height / side)
        across = math.ceil(int(down * side * ratio) / side)
    return (height, width), (down * side, across * side)


def _with_longest(size: Size, longest: int) -> Size:
    """The longer edge is `longest`, the other one even."""
    height, width = size
    ratio = width / height
    if width >= height:
        height = int(longest / ratio)
        return max(height + height % 2, 1), longest
    width = int(longest * ratio)
    return longest, max(width + width % 2, 1)


def idefics_tiles(pixels: PixelSource, side: int, longest: int) -> Pixels:
    """The tiles and then the whole image; one alone where one holds it: uint8[N, side, side, 3]."""
    fitted, enlarged = idefics_sizes(_size(pixels), side, longest)
    large = resized(resized(pixels, fitted, "lanczos"), enlarged, "lanczos")
    tiles = tiles_of(large, (side, side))
    return tiles if len(tiles) == 1 else _with_whole(tiles, large, side, "lanczos")


def closest_grid(size: Size, side: int, least: int, most: int) -> Grid:
    """The grid of `least` to `most` tiles whose shape is closest to the image's; of equals the largest that it fills.

    InternVL: `get_optimal_tiled_canvas` of GotOcr2ImageProcessor; LFM2-VL: `find_closest_aspect_ratio`.
    """
    height, width = size
    grids = [(down, across) for across in range(1, most + 1) for down in range(1, most + 1)]
    best, best_difference = (1, 1), math.inf
    for down, across in sorted((each for each in grids if least <= math.prod(each) <= most), key=math.prod):
        difference = abs(width / height - across / down)
        is_used = height * width > 0.5 * side * side * down * across
        if difference < best_difference or (difference == best_difference and is_used):
            best, best_difference = (down, across), difference
    return best


def internvl_tiles(pixels: PixelSource, side: int, least: int = 1, most: int = 12) -> Pixels:
    """The tiles and then the whole image; one alone for small grids: uint8[N, side, side, 3].

    InternVL: `crop_image_to_patches` of GotOcr2ImageProcessor.
    """
    grid = closest_grid(_size(pixels), side, least, most)
    tiles = _cut(pixels, grid, (side, side), "bicubic")
    return tiles if len(tiles) == 1 else _with_whole(tiles, pixels, side, "bicubic")


@dataclass(frozen=True, slots=True)
class LFM2Tiling:
    """How LFM2-VL cuts images; the defaults are those of its published models: Lfm2VlImageProcessor.

    patch      pixels along its edge
    merged     patches along an edge of a token
    tokens     least and most of an image that is not cut, and of the whole image beside tiles
    tiles      least and most
    side       of a tile
    tolerance  how many times the most tokens an image may have before it is cut
    """

    patch: int = 16
    merged: int = 2
    tokens: tuple[int, int] = (64, 256)
    tiles: tuple[int, int] = (2, 10)
    side: int = 512
    tolerance: float = 2.0

    def size(self, size: Size) -> Size:
        """The size of an image that is not cut, and of the whole image beside tiles."""
        return lfm2_size(size, self.patch * self.merged, *self.tokens)

    def grid(self, size: Size) -> Grid:
        """The tiles of an image; 1 x 1 for one that is not cut."""
        factor = self.patch * self.merged
        height, width = (max(round(edge / factor) * factor, self.patch) for edge in size)
        if self.tiles == (1, 1) or height * width <= self.tokens[1] * factor**2 * self.tolerance:
            return 1, 1
        return closest_grid(size, self.side, *self.tiles)


def lfm2_tiles(pixels: PixelSource, tiling: LFM2Tiling) -> list[Pixels]:
    """The tiles and then the whole image in a size of its own; that alone for images that are not cut."""
    size = _size(pixels)
    whole, grid = resized(pixels, tiling.size(size), "bilinear"), tiling.grid(size)
    return [whole] if grid == (1, 1) else [*_cut(pixels, grid, (tiling.side, tiling.side), "bilinear"), whole]


def llava_next_tiles(pixels: PixelSource, side: int, canvases: Sequence[Size]) -> Pixels:
    """The whole image and then the tiles of the best canvas, black around it: uint8[N, side, side, 3].

    LLaVA 1.6 (NeXT): LlavaNextImageProcessor.
    """
    size = _size(pixels)
    canvas = best_canvas(size, canvases)
    placed = padded(resized(pixels, size_on_canvas(size, canvas), "bicubic"), canvas, centred=True)
    return np.concatenate([resized(pixels, (side, side), "bicubic")[None], tiles_of(placed, (side, side))])


@dataclass(frozen=True, slots=True)
class MiniCPMTiling:
    """How MiniCPM-V cuts images, with the defaults of its published models: MiniCPMV4_6ImageProcessor.

    factor  sizes are multiples of it: a patch times the patches that are merged along an edge, 1 before version 4.6
    side    of a square with as many pixels as a tile
    most    tiles
    """

    factor: int = 14
    side: int = 448
    most: int = 9

    def grid(self, size: Size) -> Grid:
        """The tiles beside the whole image; 0 x 0 for one that is not cut."""
        height, width = size
        wanted = min(math.ceil(height * width / self.side**2), self.most)
        if wanted <= 1:
            return 0, 0
        best, least_error = (1, 1), math.inf
        for n in (each for each in (wanted - 1, wanted, wanted + 1) if 1 < each <= self.most):
            for down in (each for each in range(1, n + 1) if n % each == 0):
                error = abs(math.log(width / height) - math.log(n // down / down))
                if error < least_error or (error == least_error and down > best[0]):
                    best, least_error = (down, n // down), error
        return best

    def whole_size(self, size: tuple[float, float]) -> Size:
        """The size of the whole image, with about as many pixels as a square of `side`."""
        ratio = size[1] / size[0]
        height = int(self.side / math.sqrt(ratio))
        return nearest_multiple(height, self.factor), nearest_multiple(int(height * ratio), self.factor)

    def tile_size(self, size: Size) -> Size:
        """The size of a tile of an image that is cut."""
        down, across = self.grid(size)
        return self.whole_size((nearest_multiple(size[0], down) / down, nearest_multiple(size[1], across) / across))


def minicpm_tiles(pixels: PixelSource, tiling: MiniCPMTiling) -> list[Pixels]:
    """The whole image and then its tiles, each in its own size."""
    size = _size(pixels)
    whole, grid = resized(pixels, tiling.whole_size(size), "bicubic"), tiling.grid(size)
    return [whole] if grid == (0, 0) else [whole, *_cut(pixels, grid, tiling.tile_size(size), "bicubic")]


def nearest_multiple(length: int, factor: int) -> int:
    """The nearest multiple, one at least."""
    return max(round(length / factor) * factor, factor)


def _size(pixels: PixelSource) -> Size:
    return pixels.shape[0], pixels.shape[1]


def _cut(pixels: PixelSource, grid: Grid, tile: Size, name: FilterName) -> Pixels:
    """The image in the size of a grid, cut: uint8[N, height, width, 3]."""
    return tiles_of(resized(pixels, (grid[0] * tile[0], grid[1] * tile[1]), name), tile)


def _with_whole(tiles: Pixels, whole: PixelSource, side: int, name: FilterName) -> Pixels:
    return np.concatenate([tiles, resized(whole, (side, side), name)[None]])
