"""Gemma 3: SigLIP on a square of one size, average pooling, RMSNorm, one product. Source: arXiv 2503.19786.

The image is squeezed into the square. Its rows see each other in the language model, whatever their order.
"""

from __future__ import annotations

from functools import partial

from edgeinfer.graph.ops.rms_norm import RMSNorm
from edgeinfer.models.hyperparameters import Hyperparameters
from edgeinfer.models.images.patches import block_order, normalised_patches
from edgeinfer.models.images.resizing import resized
from edgeinfer.models.projectors import Projector
from edgeinfer.models.vision import transformer
from edgeinfer.models.vision.encoder import ImageEncoder, MediaPlan, Pixels, TileInput, TilePlan, averaged_neighbours
from edgeinfer.models.vision.transformer import KEYS

BEFORE, AFTER = "\n\n<start_of_image>", "<end_of_image>\n\n"
POOLED = 4
"""Patches along an edge of a square that becomes one row."""


def build(hp: Hyperparameters) -> ImageEncoder:
    """The encoder of a file. Raises BadGGUF where tensors or keys are missing."""
    side, patch = hp.integer(f"{KEYS}image_size"), hp.integer(f"{KEYS}patch_size")
    block, out = hp.integer(f"{KEYS}projector.scale_factor", POOLED), hp.integer(f"{KEYS}projection_dim")
    grid = transformer.square_grid(hp, side, patch, block)
    n_patches = grid[0] * grid[1]
    g = transformer.begun(hp, n_patches)
    width, order = g.sizes.width, block_order(grid, block)
    transformer.embed_patches(g, patch, positions=True)
    transformer.layers(g, "gelu_tanh")
    transformer.norm(g, "v.post_ln", out="x")
    last = transformer.begun_projection(hp, n_patches // block**2, width, out)
    factors = hp.vector("mm.soft_emb_norm.weight", width)
    last.add(RMSNorm("joined", last.buffer("normed", width), factors, width, g.sizes.epsilon))
    transformer.turned_product(last, "normed", "x", "mm.input_projection", out, width)
    mean, deviation = transformer.normalisation(hp)
    plan = MediaPlan((TilePlan(grid, n_patches // block**2),), (BEFORE, 0, AFTER))

    def tiles(pixels: Pixels, _: MediaPlan) -> list[TileInput]:
        square = resized(pixels, (side, side), "bilinear")
        return [TileInput(partial(normalised_patches, square, patch, mean, deviation, order))]

    return ImageEncoder(
        trunk=transformer.end(g),
        projection=transformer.end(last),
        n_most=n_patches,
        width=out,
        placeholder="<start_of_image>",
        plan=lambda _: plan,
        tiles=tiles,
        joined=averaged_neighbours(block * block),
        positions=(hp.matrix("v.position_embd.weight", (n_patches, width)), lambda table, _: table[order]),
        whole=True,
    )


PROJECTOR = Projector(build)
