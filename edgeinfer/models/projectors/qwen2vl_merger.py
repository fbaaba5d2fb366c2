"""Qwen2-VL: patches of two frames, rotary embedding over two axes, blocks of patches joined by a merger.

Source: arXiv 2409.12191. An image has 4 to 1280 rows where the
file does not say: the defaults of the processor's class; published ones allow up to 16384.
"""

from __future__ import annotations

from edgeinfer.models.hyperparameters import Hyperparameters
from edgeinfer.models.projectors import Projector
from edgeinfer.models.vision import native, transformer
from edgeinfer.models.vision.encoder import ImageEncoder, joined_neighbours
from edgeinfer.models.vision.native import Resolution
from edgeinfer.models.vision.transformer import KEYS

LEAST_TOKENS = 4


def build(hp: Hyperparameters) -> ImageEncoder:
    """The encoder of a file. Raises BadGGUF where tensors or keys are missing."""
    resolution = Resolution.of(hp, LEAST_TOKENS)
    n_most, n = resolution.n_most, resolution.block**2
    g = transformer.begun(hp, n_most)
    transformer.embed_patches(g, resolution.patch, positions=False, n_frames=2)
    transformer.layers(g, transformer.activation_of(hp), *transformer.axial_rope(g.sizes.head_width))
    transformer.norm(g, "v.post_ln", out="x")
    joined, width = n * g.sizes.width, hp.integer(f"{KEYS}projection_dim")
    last = transformer.begun_projection(hp, n_most // n, joined, width)
    native.merger(last, "joined", "x", ("mm.0", "mm.2"), joined, width)

    return ImageEncoder(
        trunk=transformer.end(g),
        projection=transformer.end(last),
        n_most=n_most,
        width=width,
        placeholder=native.QWEN_MARKS.placeholder,
        plan=lambda size: resolution.plan(size, native.QWEN_MARKS),
        tiles=resolution.inputs,
        joined=joined_neighbours(n),
    )


PROJECTOR = Projector(build)
