"""Encoders that read an image in its own shape, as one tile, and join blocks of its patches: Qwen's and their kin.

In: a projector file's header, an image or its size. Out: sizes, grids of patches, patches in an order in which those of
a block follow one another, and the positions of patches and of rows along three axes: time, height and width.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from edgeinfer.errors import BadGGUF
from edgeinfer.graph.activations import Activation
from edgeinfer.graph.ops.act import Act
from edgeinfer.graph.step import Floats, Int32s
from edgeinfer.models.hyperparameters import Hyperparameters
from edgeinfer.models.images.patches import block_order, normalised_patches
from edgeinfer.models.images.resizing import resized
from edgeinfer.models.images.sizes import QWEN_RATIO, multiples_within
from edgeinfer.models.model_graph import ModelGraph
from edgeinfer.models.vision.encoder import MediaPlan, Pixels, Size, TileInput, TilePlan
from edgeinfer.models.vision.transformer import KEYS, normalisation, product

MOST_TOKENS = 1280
"""Most rows of an image where a file does not say: the default of Qwen's processor. Published models allow up to 16384,
whose encoding takes a CPU minutes and gigabytes."""
PATCHES_MOST = 1 << 16
"""Most patches that a file may ask for."""


@dataclass(frozen=True, slots=True)
class Marks:
    """The special tokens before an image, in place of its rows, and after it."""

    begin: str
    image: str
    end: str

    @property
    def placeholder(self) -> str:
        """The pattern of what templates write: all three, or that in place of the rows alone."""
        begin, image, end = map(re.escape, (self.begin, self.image, self.end))
        return f"(?:{begin})?{image}(?:{end})?"


QWEN_MARKS = Marks("<|vision_start|>", "<|image_pad|>", "<|vision_end|>")


@dataclass(frozen=True, slots=True)
class Resolution:
    """How large an image is made: multiples of `patch` x `block` pixels, with `least` to `most` pixels in all.

    `enlarged`: what is done to the size of small images before that.
    """

    patch: int
    block: int
    least: int
    most: int
    mean: tuple[float, ...]
    deviation: tuple[float, ...]
    enlarged: Callable[[Size, int], Size] = lambda size, _: size

    @classmethod
    def of(
        cls,
        hp: Hyperparameters,
        least_tokens: int,
        enlarged: Callable[[Size, int], Size] = lambda size, _: size,
        block: int = 2,
    ) -> Resolution:
        """That of a file; `least_tokens`: fewest rows if it does not say. Raises BadGGUF."""
        patch, block = hp.integer(f"{KEYS}patch_size"), hp.integer(f"{KEYS}spatial_merge_size", block)
        per_token = (patch * block) ** 2
        least = hp.integer(f"{KEYS}image_min_pixels", least_tokens * per_token)
        most = hp.integer(f"{KEYS}image_max_pixels", MOST_TOKENS * per_token)
        found = cls(patch, block, least, most, *normalisation(hp), enlarged)
        if not least <= most or found.n_most > PATCHES_MOST:
            raise BadGGUF(f"images have {least} to {most} pixels and patches of {patch}; up to {PATCHES_MOST} may be")
        return found

    def at_most(self, n_tokens: int) -> Resolution:
        """The same for images of no more rows."""
        return replace(self, most=min(self.most, max(self.least, n_tokens * (self.patch * self.block) ** 2)))

    @property
    def n_most(self) -> int:
        """Most patches of an image, the longest shapes included."""
        n_tokens = self.most // (self.patch * self.block) ** 2
        return self.block**2 * max(n_tokens, math.isqrt(QWEN_RATIO * max(n_tokens, 1)) + 1)

    def grid(self, size: Size) -> Size:
        """Patches down and across. Raises BadImage for shapes that are too long."""
        edge = self.patch * self.block
        height, width = multiples_within(self.enlarged(size, edge), edge, self.least, self.most)
        return height // self.patch, width // self.patch

    def plan(self, size: Size, marks: Marks) -> MediaPlan:
        """An image as one tile whose rows have positions along axes. Raises as `grid`."""
        grid = self.grid(size)
        axes = grid_axes((grid[0] // self.block, grid[1] // self.block))
        return MediaPlan((TilePlan(grid, len(axes), axes),), (marks.begin, 0, marks.end))

    def inputs(self, pixels: Pixels, plan: MediaPlan) -> list[TileInput]:
        """An image as one tile, its patches at positions along axes."""
        grid = plan.tiles[0].grid
        return [TileInput(self.late_patches(pixels, grid), self.axes(grid))]

    def patches(self, pixels: Pixels, grid: Size) -> Floats:
        """The patches of an image: float32[N, 3 * patch * patch]."""
        return self.late_patches(pixels, grid)()

    def late_patches(self, pixels: Pixels, grid: Size) -> Callable[[], Floats]:
        """The same, made when they are called for; until then the resized image is kept."""
        enlarged = resized(pixels, (grid[0] * self.patch, grid[1] * self.patch), "bicubic")
        order = block_order(grid, self.block)
        return partial(normalised_patches, enlarged, self.patch, self.mean, self.deviation, order)

    def axes(self, grid: Size) -> Int32s:
        """Positions of patches along axes: int32[N, 3]."""
        return grid_axes(grid)[block_order(grid, self.block)]


def grid_axes(grid: Size) -> Int32s:
    """Positions along the axes time, height and width of what stands in a grid, row by row: int32[N, 3]."""
    places = np.indices((1, *grid), np.int32)
    return np.ascontiguousarray(places.reshape(3, -1).T)


def merger(
    g: ModelGraph, source: str, out: str, tensors: tuple[str, str], joined: int, width: int, bend: Activation = "gelu"
) -> None:
    """out = two products with an activation between them, of rows of `joined` numbers."""
    product(g, source, "merged", tensors[0], joined, joined)
    g.add(Act("merged", "merged", joined, bend))
    product(g, "merged", out, tensors[1], width, joined)
