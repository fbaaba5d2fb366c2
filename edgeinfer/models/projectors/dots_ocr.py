"""dots.ocr: a vision transformer of its own with RMSNorms, gates and rotary positions over two axes.

An image is at most 1280 rows, as with Qwen2-VL, whatever more a file allows: published files allow 14400, which takes a
CPU hours. Source: arXiv 2512.02498.
"""

from __future__ import annotations

from edgeinfer.graph.ops.layer_norm import LayerNorm
from edgeinfer.models.hyperparameters import Hyperparameters
from edgeinfer.models.projectors import Projector
from edgeinfer.models.vision import native, transformer
from edgeinfer.models.vision.encoder import (
    ImageEncoder,
    MediaPlan,
    Size,
    TilePlan,
    joined_neighbours,
)
from edgeinfer.models.vision.native import Marks, Resolution
from edgeinfer.models.vision.transformer import KEYS

LEAST_TOKENS = 4
MARKS = Marks("<|img|>", "<|imgpad|>", "<|endofimg|>")
EPSILON = 1e-6
"""Of the norm before blocks are joined, whatever that of the layers is."""


def build(hp: Hyperparameters) -> ImageEncoder:
    """The encoder of a file. Raises BadGGUF where tensors or keys are missing."""
    block = hp.integer(f"{KEYS}projector.scale_factor", 2)
    resolution = Resolution.of(hp, LEAST_TOKENS, block=block).at_most(native.MOST_TOKENS)
    n_most, n = resolution.n_most, resolution.block**2
    g = transformer.begun(hp, n_most, norms="rms")
    own = g.sizes.width
    transformer.embed_patches(g, resolution.patch, positions=False)
    transformer.norm(g, "v.pre_ln", out="x")
    transformer.layers(g, transformer.activation_of(hp), *transformer.axial_rope(g.sizes.head_width))
    transformer.norm(g, "mm.post_norm", out="x")
    weight, bias = (hp.vector(f"mm.input_norm.{part}", own) for part in ("weight", "bias"))
    g.add(LayerNorm("x", "x", weight, bias, own, EPSILON))
    width = transformer.rows_of(hp, "mm.2.weight")
    last = transformer.begun_projection(hp, n_most // n, n * own, width)
    native.merger(last, "joined", "x", ("mm.0", "mm.2"), n * own, width)

    def plan(size: Size) -> MediaPlan:
        grid = resolution.grid(size)
        return MediaPlan((TilePlan(grid, grid[0] * grid[1] // n),), (MARKS.begin, 0, MARKS.end))

    return ImageEncoder(
        trunk=transformer.end(g),
        projection=transformer.end(last),
        n_most=n_most,
        width=width,
        placeholder=MARKS.placeholder,
        plan=plan,
        tiles=resolution.inputs,
        joined=joined_neighbours(n),
    )


PROJECTOR = Projector(build)
