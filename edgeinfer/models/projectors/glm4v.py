"""GLM-4.1V, 4.5V, 4.6V and GLM-OCR: Qwen's encoder with RMSNorms, gates, and a convolution that joins patches.

Positions, which GLM-OCR lacks, are interpolated by cubic convolution. Source: arXiv 2507.01006. An image has 8 to 1280
rows where the file does not say; published processors allow up to 7500.
"""

from __future__ import annotations

from edgeinfer.graph.graph import ModelSpec
from edgeinfer.graph.ops.act import Act
from edgeinfer.graph.ops.add import Add
from edgeinfer.graph.ops.gated_act import GatedAct
from edgeinfer.graph.ops.hidden_rows import HiddenRows
from edgeinfer.graph.ops.matmul import MatMul
from edgeinfer.graph.step import Floats
from edgeinfer.models.hyperparameters import Hyperparameters
from edgeinfer.models.images.patches import block_order
from edgeinfer.models.projectors import Projector
from edgeinfer.models.vision import transformer
from edgeinfer.models.vision.encoder import ImageEncoder, Size
from edgeinfer.models.vision.native import Marks, Resolution
from edgeinfer.models.vision.positions import cubic
from edgeinfer.models.vision.transformer import KEYS

LEAST_TOKENS = 8
MARKS = Marks("<|begin_of_image|>", "<|image|>", "<|end_of_image|>")
TABLE = "v.position_embd.weight"


def build(hp: Hyperparameters) -> ImageEncoder:
    """The encoder of a file. Raises BadGGUF where tensors or keys are missing."""
    resolution = Resolution.of(hp, LEAST_TOKENS, _enlarged)
    n_most, n = resolution.n_most, resolution.block**2
    g = transformer.begun(hp, n_most, norms="rms")
    own, patch = g.sizes.width, resolution.patch
    transformer.embed_patches(g, patch, positions=False, n_frames=2)
    transformer.norm(g, "v.norm_embd", out="x")
    if TABLE in hp.tensors:
        g.add(HiddenRows(g.buffer("positions", own), own, 3 * patch * patch), Add("positions", "x", own))
    activation = transformer.activation_of(hp)
    transformer.layers(g, activation, *transformer.axial_rope(g.sizes.head_width))
    transformer.norm(g, "v.post_ln", out="x")

    def joined(rows: Floats, _: Size) -> Floats:
        return rows.reshape(-1, n, own).transpose(0, 2, 1)

    def positions(table: Floats, grid: Size) -> Floats:
        return cubic(table, grid)[block_order(grid, resolution.block)]

    width = hp.integer(f"{KEYS}projection_dim")
    return ImageEncoder(
        trunk=transformer.end(g),
        projection=_projection(hp, n_most // n, own * n, width),
        n_most=n_most,
        width=width,
        placeholder=MARKS.placeholder,
        plan=lambda size: resolution.plan(size, MARKS),
        tiles=resolution.inputs,
        joined=joined,
        positions=(transformer.square_table(hp, own), positions) if TABLE in hp.tensors else None,
    )


def _projection(hp: Hyperparameters, n_most: int, joined: int, width: int) -> ModelSpec:
    """A convolution over each block, a product, and a feed-forward network with a gate."""
    g = transformer.begun_projection(hp, n_most, joined, width)
    merger = "mm.patch_merger"
    bias = hp.bias(f"{merger}.bias", width)
    g.add(MatMul("joined", g.buffer("merged", width), hp.kernel(f"{merger}.weight", width, joined), bias))
    transformer.product(g, "merged", "x", "mm.model.fc", width, width)
    transformer.norm(g, "mm.post_norm", out="normed", width=width)
    g.add(Act("normed", "normed", width, "gelu"))
    ffn = transformer.rows_of(hp, "mm.gate.weight")
    for name in ("gate", "up"):
        transformer.product(g, "normed", name, f"mm.{name}", ffn, width)
    g.add(GatedAct("gate", "up", g.buffer("hidden", ffn), ffn, transformer.activation_of(hp)))
    transformer.product(g, "hidden", "x", "mm.down", width, ffn)
    return transformer.end(g)


def _enlarged(size: Size, edge: int) -> Size:
    """An image with an edge shorter than a row's is made as large as one."""
    if min(size) >= edge:
        return size
    scale = max(edge / side for side in size)
    return int(size[0] * scale), int(size[1] * scale)


PROJECTOR = Projector(build)
