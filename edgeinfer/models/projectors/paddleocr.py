"""PaddleOCR-VL: SigLIP with interpolated positions and a rotary embedding over two axes, blocks joined by two products.

Source: arXiv 2510.14528. Files say how many pixels an image has: 147,456 to 2,359,296 in the published one.
"""

from __future__ import annotations

from edgeinfer.graph.ops.layer_norm import LayerNorm
from edgeinfer.graph.step import Floats
from edgeinfer.models.hyperparameters import Hyperparameters
from edgeinfer.models.images.patches import block_order
from edgeinfer.models.projectors import Projector
from edgeinfer.models.vision import native, transformer
from edgeinfer.models.vision.encoder import ImageEncoder, Size, joined_neighbours
from edgeinfer.models.vision.native import Marks, Resolution
from edgeinfer.models.vision.positions import linear
from edgeinfer.models.vision.transformer import KEYS

LEAST_TOKENS = 188
MARKS = Marks("<|IMAGE_START|>", "<|IMAGE_PLACEHOLDER|>", "<|IMAGE_END|>")
EPSILON = 1e-5
"""Of the norm before blocks are joined, whatever that of the layers is."""


def build(hp: Hyperparameters) -> ImageEncoder:
    """The encoder of a file. Raises BadGGUF where tensors or keys are missing."""
    resolution = Resolution.of(hp, LEAST_TOKENS, _enlarged)
    n_most, n = resolution.n_most, resolution.block**2
    g = transformer.begun(hp, n_most)
    own = g.sizes.width
    transformer.embed_patches(g, resolution.patch, positions=True)
    activation = transformer.activation_of(hp)
    transformer.layers(g, activation, *transformer.axial_rope(g.sizes.head_width))
    transformer.norm(g, "v.post_ln", out="x")
    weight, bias = (hp.vector(f"mm.input_norm.{part}", own) for part in ("weight", "bias"))
    g.add(LayerNorm("x", "x", weight, bias, own, EPSILON))
    width = hp.integer(f"{KEYS}projection_dim")
    last = transformer.begun_projection(hp, n_most // n, n * own, width)
    native.merger(last, "joined", "x", ("mm.1", "mm.2"), n * own, width)

    def positions(table: Floats, grid: Size) -> Floats:
        return linear(table, grid)[block_order(grid, resolution.block)]

    return ImageEncoder(
        trunk=transformer.end(g),
        projection=transformer.end(last),
        n_most=n_most,
        width=width,
        placeholder=MARKS.placeholder,
        plan=lambda size: resolution.plan(size, MARKS),
        tiles=resolution.inputs,
        joined=joined_neighbours(n),
        positions=(transformer.square_table(hp, own), positions),
    )


def _enlarged(size: Size, edge: int) -> Size:
    """An image with an edge shorter than a row's is made as large as one."""
    height, width = size
    if height < edge:
        height, width = edge, round(width * edge / height)
    if width < edge:
        height, width = round(height * edge / width), edge
    return height, width


PROJECTOR = Projector(build)
