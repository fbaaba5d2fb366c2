"""MiniCPM-V's way with images: the whole image and then tiles of it, each in a shape of its own.

In: a projector file's header, an image or its size. Out: tiles, their grids of patches, and what stands around their
rows in a prompt, where the field calls the tiles slices. Source: MiniCPM-V (arXiv 2408.01800).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import zip_longest
from math import prod

import numpy as np
from numpy.typing import NDArray

from edgeinfer.errors import BadGGUF, BadImage
from edgeinfer.graph.step import Floats
from edgeinfer.models.hyperparameters import Hyperparameters
from edgeinfer.models.images.patches import normalised_patches
from edgeinfer.models.images.resizing import PixelSource
from edgeinfer.models.images.tiling import Grid, MiniCPMTiling, minicpm_tiles, nearest_multiple
from edgeinfer.models.vision.encoder import ImageNumber, MediaPlan, Size, TilePart, TilePlan
from edgeinfer.models.vision.transformer import KEYS, normalisation

IMAGE, SLICE, ID = ("<image>", "</image>"), ("<slice>", "</slice>"), ("<image_id>", "</image_id>")
LONGEST = 12
"""How many times as long as a square's edge the longer edge may be, where both have as many pixels."""
SIDE_MOST = 4096
"""Most pixels along the edge of a square tile that a file may ask for."""


@dataclass(frozen=True, slots=True)
class Slicing:
    """How images are cut. `patch`: pixels along its edge; `n_most`: most patches of a tile.

    `is_numbered`: whether the image's number in the prompt comes first. `inner`: what stands before and after a tile;
    `outer`: before and after all of them.
    """

    tiling: MiniCPMTiling
    patch: int
    n_most: int
    mean: tuple[float, ...]
    deviation: tuple[float, ...]
    is_numbered: bool = True
    inner: tuple[str, str] = SLICE
    outer: tuple[str, str] = ("", "")

    @classmethod
    def of(cls, hp: Hyperparameters, merged: int) -> Slicing:
        """That of a file whose rows are `merged` x `merged` patches. Raises BadGGUF."""
        patch, side = hp.integer(f"{KEYS}patch_size"), hp.integer(f"{KEYS}image_size", most=SIDE_MOST)
        factor = patch * merged
        if side < factor:
            raise BadGGUF(f"tiles of {side} x {side} pixels have no blocks of {merged} x {merged} patches of {patch}")
        edges = ((edge, side * side // edge) for edge in range(max(side // LONGEST, 1), side + 1))
        n_most = max(prod(nearest_multiple(edge, factor) // patch for edge in pair) for pair in edges)
        return cls(MiniCPMTiling(factor, side), patch, n_most, *normalisation(hp))

    def unnumbered(self) -> Slicing:
        """That of MiniCPM-V 2.5, whose images have no numbers and whose tiles are images in one slice."""
        return replace(self, is_numbered=False, inner=IMAGE, outer=SLICE)

    def plan(self, size: Size, n_rows: Callable[[Size], int]) -> MediaPlan:
        """The whole image and its tiles. `n_rows`: rows of a grid of patches. Raises BadImage for too long shapes."""
        whole, grid = self.tiling.whole_size(size), self.tiling.grid(size)
        sizes = [whole, *[self.tiling.tile_size(size)] * prod(grid)] if prod(grid) else [whole]
        patches = [(height // self.patch, width // self.patch) for height, width in sizes]
        if max(map(prod, patches)) > self.n_most:
            raise BadImage("the image is too long and narrow for this model")
        return MediaPlan(tuple(TilePlan(each, n_rows(each)) for each in patches), tuple(self._parts(grid)))

    def _parts(self, grid: Grid) -> Iterator[str | int | TilePart | ImageNumber]:
        if self.is_numbered:
            yield from (ID[0], ImageNumber(), ID[1])
        yield from (IMAGE[0], 0, IMAGE[1])
        down, across = grid
        if not down * across:
            return
        yield self.outer[0]
        for number in range(down * across):
            is_new_row = number % across == 0 and number > 0
            yield from (("\n" if is_new_row else "") + self.inner[0], number + 1, self.inner[1])
        yield self.outer[1]

    def patches(self, pixels: PixelSource, orders: Sequence[NDArray[np.int64]] = ()) -> list[Callable[[], Floats]]:
        """What makes the patches of each tile: float32[N, 3 * patch * patch], row by row or in the tiles' orders."""
        cut = minicpm_tiles(pixels, self.tiling)
        made = partial(normalised_patches, patch=self.patch, mean=self.mean, deviation=self.deviation)
        return [partial(made, each, order=order) for each, order in zip_longest(cut, orders)]
