"""Pixtral, and the encoders of Mistral Small 3.1 and later, which join blocks of patches.

RMSNorms, gates, rotary embedding over two axes with frequencies in alternation. A special token ends each line of rows,
another one the image. Sources: Pixtral (arXiv 2410.07073), Mistral 3's encoder in transformers. The longer edge has as
many pixels as the file says, but no more than 5120 patches are in an image: with 12100, which Mistral Small 3.1 allows,
encoding takes a CPU minutes and a gigabyte.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from functools import partial

from edgeinfer.graph.graph import ModelSpec
from edgeinfer.graph.operands import RopePermutation
from edgeinfer.graph.ops.act import Act
from edgeinfer.graph.step import Floats
from edgeinfer.models.hyperparameters import Hyperparameters
from edgeinfer.models.images.patches import block_order, normalised_patches
from edgeinfer.models.images.resizing import resized
from edgeinfer.models.images.sizes import pixtral_size
from edgeinfer.models.projectors import Projector
from edgeinfer.models.vision import transformer
from edgeinfer.models.vision.encoder import ImageEncoder, MediaPlan, Pixels, Size, TileInput, TilePart, TilePlan
from edgeinfer.models.vision.native import grid_axes
from edgeinfer.models.vision.transformer import KEYS

BREAK, END = "[IMG_BREAK]", "[IMG_END]"
MOST_PATCHES = 5120
MERGER = "mm.patch_merger"


def build(hp: Hyperparameters) -> ImageEncoder:
    """The encoder of a file. Raises BadGGUF where tensors or keys are missing."""
    return encoder(hp, "[IMG]", _in_lines, MOST_PATCHES)


def encoder(
    hp: Hyperparameters, placeholder: str, parts: Callable[[Size], tuple[str | TilePart, ...]], most_patches: int
) -> ImageEncoder:
    """The encoder of a file. `placeholder`: what templates write for an image; `parts`: what stands for a grid of rows.

    Raises BadGGUF.
    """
    patch = hp.integer(f"{KEYS}patch_size")
    block = hp.integer(f"{KEYS}spatial_merge_size", 1) if f"{MERGER}.weight" in hp.tensors else 1
    edge = patch * block
    longest = min(hp.integer(f"{KEYS}image_size"), max(math.isqrt(most_patches) // block, 1) * edge)
    n_most = (-(-longest // edge) * block) ** 2
    g = transformer.begun(hp, n_most, norms="rms")
    transformer.embed_patches(g, patch, positions=False)
    transformer.norm(g, "v.pre_ln", out="x")
    transformer.shared_cache(g)
    rope = transformer.axial_rope(g.sizes.head_width, hp.positive("rope.freq_base", 10000.0), shift=0.5)
    order = RopePermutation(g.sizes.head_width, g.sizes.head_width)
    for number in range(g.sizes.n_layers):
        transformer.layer(g, number, transformer.activation_of(hp), *rope, order=order)
    if f"{MERGER}.weight" in hp.tensors:
        transformer.norm(g, "mm.input_norm", out="x")
    width, own = hp.integer(f"{KEYS}projection_dim"), g.sizes.width
    mean, deviation = transformer.normalisation(hp)

    def plan(size: Size) -> MediaPlan:
        height, width = pixtral_size(size, longest, edge)
        lines = height // edge, width // edge
        return MediaPlan((TilePlan((height // patch, width // patch), math.prod(lines)),), parts(lines))

    def tiles(pixels: Pixels, plan: MediaPlan) -> list[TileInput]:
        grid = plan.tiles[0].grid
        enlarged, order = resized(pixels, (grid[0] * patch, grid[1] * patch), "bicubic"), block_order(grid, block)
        patches = partial(normalised_patches, enlarged, patch, mean, deviation, order)
        return [TileInput(patches, grid_axes(grid)[order])]

    def joined(rows: Floats, _: Size) -> Floats:
        return rows.reshape(-1, block**2, own).transpose(0, 2, 1)

    return ImageEncoder(
        trunk=transformer.end(g),
        projection=_projection(hp, n_most, own, block, width),
        n_most=n_most,
        width=width,
        placeholder=re.escape(placeholder),
        plan=plan,
        tiles=tiles,
        joined=joined,
        unread=re.escape("v.token_embd.img_break"),
    )


def _projection(hp: Hyperparameters, n_most: int, own: int, block: int, width: int) -> ModelSpec:
    """Blocks of patches become one row, if they are merged; then two products."""
    joined = own * block**2
    g = transformer.begun_projection(hp, n_most // block**2, joined, width)
    source = "joined"
    if f"{MERGER}.weight" in hp.tensors:
        source = "merged"
        transformer.product(g, "joined", source, MERGER, own, joined)
    transformer.product(g, source, "hidden", "mm.1", width, own)
    g.add(Act("hidden", "hidden", width, "gelu"))
    transformer.product(g, "hidden", "x", "mm.2", width, width)
    return transformer.end(g)


def _in_lines(grid: Size) -> tuple[str | TilePart, ...]:
    """The rows of a grid, line by line."""
    down, across = grid
    ends = [BREAK] * (down - 1) + [END]
    return tuple(
        part for line, end in enumerate(ends) for part in (TilePart(0, line * across, (line + 1) * across), end)
    )


PROJECTOR = Projector(build)
