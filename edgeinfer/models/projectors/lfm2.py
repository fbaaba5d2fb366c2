"""LFM2-VL: SigLIP 2 on images of any shape, pixel unshuffle, two products. Source: arXiv 2511.23404.

An image of up to about 512 x 1024 pixels is resized to whole blocks of patches. A larger one is cut into tiles, followed by
the whole image in one more. Sizes and numbers of tiles are those of the published processors; files have none.
"""

from __future__ import annotations

import math

from edgeinfer.errors import BadGGUF, BadImage
from edgeinfer.graph.ops.act import Act
from edgeinfer.graph.ops.layer_norm import LayerNorm
from edgeinfer.models.hyperparameters import Hyperparameters
from edgeinfer.models.images.patches import block_order, patches_of, tiles_of
from edgeinfer.models.images.resizing import normalised, resized
from edgeinfer.models.projectors import Projector
from edgeinfer.models.vision import transformer
from edgeinfer.models.vision.closest_grid import closest_grid
from edgeinfer.models.vision.encoder import (
    ImageEncoder,
    ImagePlan,
    Pixels,
    Size,
    TileInput,
    TilePlan,
    joined_neighbours,
)
from edgeinfer.models.vision.positions import interpolated
from edgeinfer.models.vision.transformer import KEYS

TILE = 512
TILES = (2, 10)
ROWS = (64, 256)
"""Rows of an image in one piece."""
TOLERANCE = 2
"""An image of more than so many times the most pixels of one piece is cut into tiles."""
DROPPED = 8
"""Most layers after the last one that runs."""
BEFORE, AFTER, WHOLE = "<|image_start|>", "<|image_end|>", "<|img_thumbnail|>"


def build(hp: Hyperparameters) -> ImageEncoder:
    """The encoder of a file. Raises BadGGUF where tensors or keys are missing."""
    patch, block = hp.integer(f"{KEYS}patch_size"), hp.integer(f"{KEYS}projector.scale_factor", 2)
    if TILE % (patch * block):
        raise BadGGUF(f"tiles of {TILE} pixels have no whole blocks of {block} x {block} patches of {patch}")
    n_most = max(ROWS[1] * block * block, (TILE // patch) ** 2)
    g = transformer.begun(hp, n_most)
    transformer.embed_patches(g, patch, positions=True)
    transformer.layers(g, transformer.activation_of(hp))
    transformer.norm(g, "v.post_ln", out="x")
    width, out = g.sizes.width, hp.integer(f"{KEYS}projection_dim")
    joined = width * block * block
    last = transformer.begun_projection(hp, n_most, joined, out)
    if "mm.input_norm.weight" in hp.tensors:
        factors, bias = hp.vector("mm.input_norm.weight", joined), hp.bias("mm.input_norm.bias", joined)
        last.add(LayerNorm("joined", "joined", factors, bias, joined, 1e-5))
    inner = transformer.rows_of(hp, "mm.1.weight")
    transformer.product(last, "joined", "inner", "mm.1", inner, joined)
    last.add(Act("inner", "inner", inner, "gelu"))
    transformer.product(last, "inner", "x", "mm.2", out, inner)
    mean, deviation = transformer.normalisation(hp)

    def tiles(pixels: Pixels, plan: ImagePlan) -> list[TileInput]:
        found = []
        for tile, cut in zip(plan.tiles, _cut(pixels, plan, patch), strict=True):
            patches = patches_of(normalised(cut, mean, deviation), patch)
            found.append(TileInput(patches[block_order(tile.grid, block)]))
        return found

    return ImageEncoder(
        trunk=transformer.end(g),
        projection=transformer.end(last, width=out),
        n_most=n_most,
        width=out,
        placeholder="<image>",
        plan=lambda size: _plan(size, patch, block, n_most),
        tiles=tiles,
        joined=joined_neighbours(block * block),
        positions=(
            transformer.square_table(hp, width),
            lambda table, grid: interpolated(table, grid)[block_order(grid, block)],
        ),
        unread=transformer.layers_from(g.sizes.n_layers, g.sizes.n_layers + DROPPED)[1:],
    )


def _plan(size: Size, patch: int, block: int, n_most: int) -> ImagePlan:
    """The tiles of an image, the whole image last. Raises BadImage."""
    step = patch * block
    height, width = _in_one_piece(size, step)
    whole = TilePlan((height // patch, width // patch), height * width // step**2)
    if whole.grid[0] * whole.grid[1] > n_most:
        raise BadImage(f"an image of {size[1]} x {size[0]} pixels is too narrow for this model: cut it")
    if math.prod(max(patch, _rounded(each, step)) for each in size) <= TOLERANCE * ROWS[1] * step**2:
        return ImagePlan((whole,), (BEFORE, 0, AFTER))
    down, across = closest_grid(size, TILE, TILES)
    tile = TilePlan((TILE // patch, TILE // patch), (TILE // step) ** 2)
    parts: list[str | int] = [BEFORE]
    for number in range(down * across):
        parts += [f"<|img_row_{number // across + 1}_col_{number % across + 1}|>", number]
    n_tiles = down * across
    return ImagePlan((*(tile,) * n_tiles, whole), (*parts, WHOLE, n_tiles, AFTER))


def _rounded(length: int, step: int) -> int:
    return round(length / step) * step


def _in_one_piece(size: Size, step: int) -> Size:
    """The size in whole blocks nearest to an image's, its shape kept, within the limits of rows."""
    least, most = (n_rows * step**2 for n_rows in ROWS)
    height, width = (max(step, _rounded(each, step)) for each in size)
    if height * width > most:
        shrunk = math.sqrt(size[0] * size[1] / most)
        height, width = (max(step, math.floor(each / shrunk / step) * step) for each in size)
    elif height * width < least:
        grown = math.sqrt(least / (size[0] * size[1]))
        height, width = (math.ceil(each * grown / step) * step for each in size)
    return height, width


def _cut(pixels: Pixels, plan: ImagePlan, patch: int) -> list[Pixels]:
    """The tiles of an image, then the whole image."""
    down, across = plan.tiles[-1].grid
    whole = resized(pixels, (down * patch, across * patch), "bilinear")
    if len(plan.tiles) == 1:
        return [whole]
    down, across = closest_grid(pixels.shape[:2], TILE, TILES)
    return [*tiles_of(resized(pixels, (down * TILE, across * TILE), "bilinear"), (TILE, TILE)), whole]


PROJECTOR = Projector(build)
