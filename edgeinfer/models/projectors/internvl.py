"""InternVL 2.5 and 3: tiles of one size through a vision transformer with layer scale, pixel shuffle, two products.

The image is squeezed into the grid of tiles whose shape is closest to its own, followed by the whole image in one more
tile. Sources: InternVL 1.5 (arXiv 2404.16821), InternVL 3 (arXiv 2504.10479).
"""

from __future__ import annotations

from functools import partial

import numpy as np
from numpy.typing import NDArray

from edgeinfer.errors import BadGGUF
from edgeinfer.graph.ops.act import Act
from edgeinfer.graph.ops.layer_norm import LayerNorm
from edgeinfer.graph.step import Floats
from edgeinfer.models.hyperparameters import Hyperparameters
from edgeinfer.models.images.patches import normalised_patches
from edgeinfer.models.images.tiling import closest_grid, internvl_tiles
from edgeinfer.models.projectors import Projector
from edgeinfer.models.vision import transformer
from edgeinfer.models.vision.class_token import TokensOfGrid
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

BEFORE, AFTER = "<img>", "</img>"
TILES = (1, 12)
MOST_TILES = 64


def build(hp: Hyperparameters) -> ImageEncoder:
    """The encoder of a file. Raises BadGGUF where tensors or keys are missing."""
    side, patch = hp.integer(f"{KEYS}image_size"), hp.integer(f"{KEYS}patch_size")
    block, out = hp.integer(f"{KEYS}projector.scale_factor", 2), hp.integer(f"{KEYS}projection_dim")
    tokens = TokensOfGrid(hp, transformer.square_grid(hp, side, patch, block), block)
    g = transformer.begun(hp, tokens.n_tokens, "layer" if "v.blk.0.ln1.bias" in hp.tensors else "rms")
    width = g.sizes.width
    transformer.embed_patches(g, patch, positions=True, bias=not tokens.has_class)
    transformer.layers(g, "silu" if hp.flag("use_silu", default=False) else "gelu")
    if "v.post_ln.weight" in hp.tensors:
        transformer.norm(g, "v.post_ln", out="x")
    joined = width * block * block
    last = transformer.begun_projection(hp, tokens.n_patches // block**2, joined, out)
    factors, bias = hp.vector("mm.model.mlp.0.weight", joined), hp.bias("mm.model.mlp.0.bias", joined)
    last.add(LayerNorm("joined", "joined", factors, bias, joined, 1e-5))
    inner = transformer.rows_of(hp, "mm.model.mlp.1.weight")
    transformer.product(last, "joined", "inner", "mm.model.mlp.1", inner, joined)
    last.add(Act("inner", "inner", inner, "gelu"))
    transformer.product(last, "inner", "x", "mm.model.mlp.3", out, inner)
    n_tiles, tile = _n_tiles(hp), TilePlan(tokens.grid, tokens.n_patches // block**2)
    mean, deviation = transformer.normalisation(hp)
    join = joined_neighbours(block * block)

    def plan(size: Size) -> MediaPlan:
        down, across = closest_grid(size, side, *n_tiles)
        count = down * across + (down * across > 1)
        return MediaPlan((tile,) * count, (BEFORE, *range(count), AFTER))

    def tiles(pixels: Pixels, _: MediaPlan) -> list[TileInput]:
        cut = internvl_tiles(pixels, side, *n_tiles)
        return [TileInput(partial(rows_of, each)) for each in cut]

    def rows_of(tile: NDArray[np.uint8]) -> Floats:
        return tokens.input_rows(normalised_patches(tile, patch, mean, deviation))

    return ImageEncoder(
        trunk=transformer.end(g),
        projection=transformer.end(last),
        n_most=tokens.n_tokens,
        width=out,
        placeholder="<image>|<IMG_CONTEXT>",
        plan=plan,
        tiles=tiles,
        joined=lambda rows, grid: join(tokens.without_class(rows), grid),
        positions=tokens.positions(width),
        constants=tokens.constants(width),
    )


def _n_tiles(hp: Hyperparameters) -> tuple[int, int]:
    """How many tiles an image has at least and at most. Raises BadGGUF."""
    least, most = (
        hp.integer(f"{KEYS}preproc_{name}_tiles", default, most=MOST_TILES)
        for name, default in zip(("min", "max"), TILES, strict=True)
    )
    if least > most:
        raise BadGGUF(f"{hp.architecture}.{KEYS}preproc_min_tiles is {least}, and preproc_max_tiles {most}")
    return least, most


PROJECTOR = Projector(build)
