"""Kimi-VL: MoonViT on images of any shape, whose positions are learned and rotary; pixel shuffle, two products.

An image is shrunk to 4096 patches, as by the published processor, and padded with black to whole blocks. A rotary
embedding turns adjacent pairs, by columns and rows by turns; llama.cpp turns a half of each head by each. Source: arXiv
2504.07491.
"""

from __future__ import annotations

import re
from functools import partial
from math import prod

from edgeinfer.errors import BadGGUF, BadImage
from edgeinfer.graph.operands import AlternatingPermutation
from edgeinfer.graph.ops.act import Act
from edgeinfer.graph.ops.layer_norm import LayerNorm
from edgeinfer.graph.step import Floats
from edgeinfer.models.hyperparameters import Hyperparameters
from edgeinfer.models.images.patches import block_order, normalised_patches
from edgeinfer.models.images.resizing import padded, resized
from edgeinfer.models.images.sizes import kimi_size
from edgeinfer.models.projectors import Projector
from edgeinfer.models.vision import transformer
from edgeinfer.models.vision.encoder import (
    ImageEncoder,
    MediaPlan,
    Pixels,
    Size,
    TileInput,
    TilePlan,
    joined_neighbours,
)
from edgeinfer.models.vision.native import grid_axes
from edgeinfer.models.vision.positions import cubic
from edgeinfer.models.vision.transformer import KEYS

MOST_PATCHES, LONGEST = 4096, 512
"""Patches of an image, and of one of its edges, before it is padded."""
PADDED = 11 * MOST_PATCHES // 8
"""Most patches of an image that is padded to blocks of 2 x 2."""
BLOCKS = (1, 2)
BEFORE, ROWS, AFTER = "<|media_start|>image<|media_content|>", "<|media_pad|>", "<|media_end|>"
EPSILON = 1e-5
"""Of the norm before blocks are joined, whatever that of the layers is."""


def build(hp: Hyperparameters) -> ImageEncoder:
    """The encoder of a file. Raises BadGGUF where tensors or keys are missing."""
    patch, block = hp.integer(f"{KEYS}patch_size"), hp.integer(f"{KEYS}projector.scale_factor", 2)
    if block not in BLOCKS:
        raise BadGGUF(f"{hp.architecture}.{KEYS}projector.scale_factor is {block}; it must be 1 or 2")
    g, n = transformer.begun(hp, PADDED), block**2
    own, activation = g.sizes.width, transformer.activation_of(hp)
    transformer.embed_patches(g, patch, positions=True)
    transformer.shared_cache(g)
    rope, order = transformer.axial_rope(g.sizes.head_width), AlternatingPermutation(g.sizes.head_width)
    for number in range(g.sizes.n_layers):
        transformer.layer(g, number, activation, *rope, order=order)
    transformer.norm(g, "v.post_ln", out="x")
    weight, bias = (hp.vector(f"mm.input_norm.{part}", own) for part in ("weight", "bias"))
    g.add(LayerNorm("x", "x", weight, bias, own, EPSILON))
    inner, width = transformer.rows_of(hp, "mm.1.weight"), transformer.rows_of(hp, "mm.2.weight")
    last = transformer.begun_projection(hp, PADDED // n, n * own, width)
    transformer.product(last, "joined", "inner", "mm.1", inner, n * own)
    last.add(Act("inner", "inner", inner, "gelu"))
    transformer.product(last, "inner", "x", "mm.2", width, inner)
    mean, deviation = transformer.normalisation(hp)

    def grid_of(size: Size) -> Size:
        edges = kimi_size(size, patch, MOST_PATCHES, LONGEST)
        down, across = (-(-edge // (patch * block)) * block for edge in edges)
        return down, across

    def plan(size: Size) -> MediaPlan:
        grid = grid_of(size)
        if prod(grid) > PADDED:
            raise BadImage("the image is too long and narrow for this model")
        return MediaPlan((TilePlan(grid, prod(grid) // n),), (BEFORE, 0, AFTER))

    def tiles(pixels: Pixels, plan: MediaPlan) -> list[TileInput]:
        grid = plan.tiles[0].grid
        small = resized(pixels, kimi_size((pixels.shape[0], pixels.shape[1]), patch, MOST_PATCHES, LONGEST), "bicubic")
        whole = padded(small, (grid[0] * patch, grid[1] * patch))
        rows = block_order(grid, block)
        return [TileInput(partial(normalised_patches, whole, patch, mean, deviation, rows), grid_axes(grid)[rows])]

    def positions(table: Floats, grid: Size) -> Floats:
        return cubic(table, grid)[block_order(grid, block)]

    begin, image, end = map(re.escape, (BEFORE, ROWS, AFTER))
    return ImageEncoder(
        trunk=transformer.end(g),
        projection=transformer.end(last),
        n_most=PADDED,
        width=width,
        placeholder=f"(?:{begin})?{image}(?:{end})?",
        plan=plan,
        tiles=tiles,
        joined=joined_neighbours(n),
        positions=(transformer.square_table(hp, own), positions),
    )


PROJECTOR = Projector(build)
