"""Idefics 3 and SmolVLM: SigLIP on tiles of one size, pixel shuffle, one product.

The image is made large enough for tiles of the encoder's size, cut into them, and followed by the whole image in one
more tile. Sources: Idefics 3 (arXiv 2408.12637), SmolVLM (arXiv 2504.05299).
"""

from __future__ import annotations

from functools import partial

from edgeinfer.models.hyperparameters import Hyperparameters
from edgeinfer.models.images.patches import block_order, normalised_patches
from edgeinfer.models.images.tiling import idefics_sizes, idefics_tiles
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
from edgeinfer.models.vision.transformer import KEYS

BEFORE, WHOLE = "<fake_token_around_image>", "<global-img>"


def build(hp: Hyperparameters) -> ImageEncoder:
    """The encoder of a file. Raises BadGGUF where tensors or keys are missing."""
    side, patch = hp.integer(f"{KEYS}image_size"), hp.integer(f"{KEYS}patch_size")
    longest, block = hp.integer(f"{KEYS}preproc_image_size", side), hp.integer(f"{KEYS}projector.scale_factor", 1)
    grid, width = (side // patch, side // patch), hp.integer(f"{KEYS}projection_dim")
    n_patches = grid[0] * grid[1]
    g = transformer.begun(hp, n_patches)
    transformer.embed_patches(g, patch, positions=True)
    transformer.layers(g, transformer.activation_of(hp))
    transformer.norm(g, "v.post_ln", out="x")
    joined = g.sizes.width * block * block
    last = transformer.begun_projection(hp, n_patches // block**2, joined, width)
    transformer.product(last, "joined", "x", "mm.model.fc", width, joined)
    table = hp.matrix("v.position_embd.weight", (n_patches, g.sizes.width))
    tile, order = TilePlan(grid, n_patches // (block * block)), block_order(grid, block)
    mean, deviation = transformer.normalisation(hp)

    def tiles(pixels: Pixels, plan: MediaPlan) -> list[TileInput]:
        cut = idefics_tiles(pixels, side, longest)
        return [TileInput(partial(normalised_patches, each, patch, mean, deviation, order)) for each in cut]

    return ImageEncoder(
        trunk=transformer.end(g),
        projection=transformer.end(last),
        n_most=n_patches,
        width=width,
        placeholder="<image>",
        plan=lambda size: _plan(size, tile, side, longest),
        tiles=tiles,
        joined=joined_neighbours(block * block),
        positions=(table, lambda held, _: held[order]),
    )


def _plan(size: Size, tile: TilePlan, side: int, longest: int) -> MediaPlan:
    """The tiles of an image and what is written around them."""
    down, across = (edge // side for edge in idefics_sizes(size, side, longest)[1])
    if down == across == 1:
        return MediaPlan((tile,), (f"{BEFORE}{WHOLE}", 0, BEFORE))
    parts: list[str | int] = []
    for row in range(down):
        for column in range(across):
            newline = "\n" if row and not column else ""
            parts += [f"{newline}{BEFORE}<row_{row + 1}_col_{column + 1}>", row * across + column]
    n_tiles = down * across
    return MediaPlan((tile,) * (n_tiles + 1), (*parts, f"\n\n{BEFORE}{WHOLE}", n_tiles, BEFORE))


PROJECTOR = Projector(build)
