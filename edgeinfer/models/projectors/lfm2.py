"""LFM2-VL: SigLIP 2 on images of any shape, pixel unshuffle, two products. Source: arXiv 2511.23404.

An image of up to about 512 x 1024 pixels is resized to whole blocks of patches. A larger one is cut into tiles,
followed by the whole image in one more. Sizes and numbers of tiles are those of the published processors; files have
none.
"""

from __future__ import annotations

from functools import partial

from edgeinfer.errors import BadGGUF, BadImage
from edgeinfer.graph.ops.act import Act
from edgeinfer.graph.ops.layer_norm import LayerNorm
from edgeinfer.models.hyperparameters import Hyperparameters
from edgeinfer.models.images.patches import block_order, normalised_patches
from edgeinfer.models.images.tiling import LFM2Tiling, lfm2_tiles
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
from edgeinfer.models.vision.positions import interpolated
from edgeinfer.models.vision.transformer import KEYS

DROPPED = 8
"""Most layers after the last one that runs."""
BEFORE, AFTER, WHOLE = "<|image_start|>", "<|image_end|>", "<|img_thumbnail|>"


def build(hp: Hyperparameters) -> ImageEncoder:
    """The encoder of a file. Raises BadGGUF where tensors or keys are missing."""
    patch, block = hp.integer(f"{KEYS}patch_size"), hp.integer(f"{KEYS}projector.scale_factor", 2)
    tiling = LFM2Tiling(patch, block)
    if tiling.side % (patch * block):
        raise BadGGUF(f"tiles of {tiling.side} pixels have no whole blocks of {block} x {block} patches of {patch}")
    n_most = max(tiling.tokens[1] * block * block, (tiling.side // patch) ** 2)
    g = transformer.begun(hp, n_most)
    transformer.embed_patches(g, patch, positions=True)
    transformer.layers(g, transformer.activation_of(hp))
    transformer.norm(g, "v.post_ln", out="x")
    width, out = g.sizes.width, hp.integer(f"{KEYS}projection_dim")
    joined = width * block * block
    last = transformer.begun_projection(hp, n_most // block**2, joined, out)
    if "mm.input_norm.weight" in hp.tensors:
        factors, bias = hp.vector("mm.input_norm.weight", joined), hp.bias("mm.input_norm.bias", joined)
        last.add(LayerNorm("joined", "joined", factors, bias, joined, 1e-5))
    inner = transformer.rows_of(hp, "mm.1.weight")
    transformer.product(last, "joined", "inner", "mm.1", inner, joined)
    last.add(Act("inner", "inner", inner, "gelu"))
    transformer.product(last, "inner", "x", "mm.2", out, inner)
    mean, deviation = transformer.normalisation(hp)

    def tiles(pixels: Pixels, plan: MediaPlan) -> list[TileInput]:
        found = []
        for tile, cut in zip(plan.tiles, lfm2_tiles(pixels, tiling), strict=True):
            order = block_order(tile.grid, block)
            found.append(TileInput(partial(normalised_patches, cut, patch, mean, deviation, order)))
        return found

    return ImageEncoder(
        trunk=transformer.end(g),
        projection=transformer.end(last),
        n_most=n_most,
        width=out,
        placeholder="<image>",
        plan=lambda size: _plan(size, tiling, n_most),
        tiles=tiles,
        joined=joined_neighbours(block * block),
        positions=(
            transformer.square_table(hp, width),
            lambda table, grid: interpolated(table, grid)[block_order(grid, block)],
        ),
        unread=transformer.layers_from(g.sizes.n_layers, g.sizes.n_layers + DROPPED)[1:],
    )


def _plan(size: Size, tiling: LFM2Tiling, n_most: int) -> MediaPlan:
    """The tiles of an image, the whole image last. Raises BadImage."""
    patch, block = tiling.patch, tiling.merged
    height, width = tiling.size(size)
    whole = TilePlan((height // patch, width // patch), height * width // (patch * block) ** 2)
    if whole.grid[0] * whole.grid[1] > n_most:
        raise BadImage("the image is too long and narrow for this model")
    down, across = tiling.grid(size)
    n_tiles = down * across
    if n_tiles == 1:
        return MediaPlan((whole,), (BEFORE, 0, AFTER))
    side = tiling.side // patch
    tile = TilePlan((side, side), (side // block) ** 2)
    parts: list[str | int] = [BEFORE]
    for number in range(n_tiles):
        parts += [f"<|img_row_{number // across + 1}_col_{number % across + 1}|>", number]
    return MediaPlan((*(tile,) * n_tiles, whole), (*parts, WHOLE, n_tiles, AFTER))


PROJECTOR = Projector(build)
