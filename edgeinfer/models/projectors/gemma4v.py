"""Gemma 4: a vision transformer on images of any shape, average pooling, RMSNorm, one product.

The image is resized to as many patches as make up to 280 rows, or as many as the file says. Positions are learned, one
for each column and row, and each half of a head rotates by one of the two. Products may be clipped. Source: the
published models.
"""

from __future__ import annotations

import math

import numpy as np

from edgeinfer.errors import BadGGUF, BadImage
from edgeinfer.graph.operands import AxisPermutation, PagedKV, Weight
from edgeinfer.graph.ops.add import Add
from edgeinfer.graph.ops.add_vector import AddVector
from edgeinfer.graph.ops.attention import Attention
from edgeinfer.graph.ops.clip_between import ClipBetween
from edgeinfer.graph.ops.gated_act import GatedAct
from edgeinfer.graph.ops.matmul import MatMul
from edgeinfer.graph.ops.mul_vector import MulVector
from edgeinfer.graph.ops.rms_norm import RMSNorm
from edgeinfer.graph.ops.rope import Rope
from edgeinfer.graph.ops.scale import Scale
from edgeinfer.graph.ops.store_kv import StoreKV
from edgeinfer.graph.step import Floats
from edgeinfer.models.hyperparameters import Hyperparameters
from edgeinfer.models.images.patches import block_order, patches_of
from edgeinfer.models.images.resizing import rescaled, resized
from edgeinfer.models.images.sizes import gemma4_size
from edgeinfer.models.model_graph import ModelGraph
from edgeinfer.models.projectors import Projector
from edgeinfer.models.vision import transformer
from edgeinfer.models.vision.encoder import (
    ImageEncoder,
    MediaPlan,
    Pixels,
    Size,
    TileInput,
    TilePlan,
    averaged_neighbours,
)
from edgeinfer.models.vision.native import PATCHES_MOST, grid_axes
from edgeinfer.models.vision.transformer import CACHE, KEYS

BEFORE, AFTER = "<|image>", "<image|>"
ROWS = 280
"""Most rows of an image; the published processor's."""
BASE = 100.0
"""Of the rotary embedding."""
SMALL = (1536, 2560)
"""Widths of the models in which rows of an image see only what comes before them: E2B and E4B."""


def build(hp: Hyperparameters) -> ImageEncoder:
    """The encoder of a file. Raises BadGGUF where tensors or keys are missing."""
    patch, block = hp.integer(f"{KEYS}patch_size"), hp.integer(f"{KEYS}projector.scale_factor", 3)
    pixels_of_row = (patch * block) ** 2
    n_rows = max(hp.integer(f"{KEYS}image_max_pixels", ROWS * pixels_of_row) // pixels_of_row, 1)
    n_most, heads = n_rows * block * block, hp.integer(f"{KEYS}attention.head_count")
    if not 0 < n_most <= PATCHES_MOST:
        raise BadGGUF(
            f"images have up to {n_rows} rows of {block} x {block} patches; up to {PATCHES_MOST} patches may be"
        )
    own, rest = divmod(transformer.rows_of(hp, "v.blk.0.attn_q.weight"), heads)
    if rest or own % 4:
        raise BadGGUF(f"v.blk.0.attn_q.weight has {own * heads + rest} rows for {heads} heads, each of four parts")
    g = transformer.begun(hp, n_most, "rms", own)
    width, out = g.sizes.width, hp.integer(f"{KEYS}projection_dim")
    transformer.embed_patches(g, patch, positions=True)
    _layers(g)
    last = transformer.begun_projection(hp, n_rows, width, out)
    _standardise(last, width)
    last.add(RMSNorm("joined", "joined", None, width, g.sizes.epsilon))
    transformer.product(last, "joined", "x", "mm.input_projection", out, width)
    averaged, root = averaged_neighbours(block * block), np.float32(math.sqrt(width))

    def tiles(pixels: Pixels, plan: MediaPlan) -> list[TileInput]:
        down, across = grid = plan.tiles[0].grid
        enlarged, order = resized(pixels, (down * patch, across * patch), "bicubic"), block_order(grid, block)

        def patches() -> Floats:
            found = rescaled(patches_of(enlarged, patch)[order])
            found -= np.float32(0.5)
            found *= np.float32(2)
            return found

        return [TileInput(patches, grid_axes(grid)[order])]

    return ImageEncoder(
        trunk=transformer.end(g),
        projection=transformer.end(last),
        n_most=n_most,
        width=out,
        placeholder=r"<\|image\|>",
        plan=lambda size: _plan(size, patch, block, n_rows),
        tiles=tiles,
        joined=lambda rows, grid: averaged(rows, grid) * root,
        positions=(_table(hp, width), lambda table, grid: _positions(table, grid)[block_order(grid, block)]),
        whole=out not in SMALL,
    )


def _layers(g: ModelGraph) -> None:
    """All layers: each branch has a norm before and after it."""
    g.cache(PagedKV(g.sizes.kv_heads, g.sizes.head_width, g.sizes.head_width))
    width = g.sizes.width
    for number in range(g.sizes.n_layers):
        g.stage(f"blk.{number}", f"v.blk.{number}.")
        for before, branch, after in (
            ("ln1", _attention, "attn_post_norm"),
            ("ln2", _feed_forward, "ffn_post_norm"),
        ):
            transformer.norm(g, f"{g.prefix}{before}")
            branch(g)
            transformer.norm(g, f"{g.prefix}{after}", "branch", "branch")
            g.add(Add("branch", "x", width))


def _attention(g: ModelGraph) -> None:
    """Attention of all patches to all, of normed queries, keys and values; from `normed` to `branch`."""
    sizes, prefix = g.sizes, g.prefix
    width, own, epsilon = sizes.width, sizes.head_width, sizes.epsilon
    axes = AxisPermutation(own)
    table, sections = transformer.axial_rope(own, BASE)
    counts = {"query": sizes.heads, "key": sizes.kv_heads, "value": sizes.kv_heads}
    for name, count in counts.items():
        tensor, order = f"{prefix}attn_{name[0]}", None if name == "value" else axes
        g.buffer(name, count * own, heads=count)
        _product(g, "normed", name, tensor, g.hp.matrix(f"{tensor}.weight", (count * own, width), order=order))
        factors = None if name == "value" else g.hp.vector(f"{tensor}_norm.weight", own, order=order)
        g.add(RMSNorm(name, name, factors, own, epsilon, count))
        if name != "value":
            g.add(Rope(name, count, own, table, sections))
    g.add(StoreKV("key", "value", CACHE, sizes.kv_heads, own, own))
    attended, n_attended = g.buffer("attended", sizes.heads * own, heads=sizes.heads), sizes.heads * own
    g.add(Attention("query", attended, CACHE, sizes.heads, sizes.kv_heads, own, own, 1.0, causal=False))
    tensor = f"{prefix}attn_out"
    _product(g, attended, g.buffer("branch", width), tensor, g.hp.matrix(f"{tensor}.weight", (width, n_attended)))


def _feed_forward(g: ModelGraph) -> None:
    """A gated network, from `normed` to `branch`."""
    width, ffn = g.sizes.width, g.sizes.ffn_width
    for name in ("gate", "up"):
        tensor = f"{g.prefix}ffn_{name}"
        _product(g, "normed", g.buffer(name, ffn), tensor, g.hp.matrix(f"{tensor}.weight", (ffn, width)))
    g.add(GatedAct("gate", "up", g.buffer("hidden", ffn), ffn, "gelu_tanh"))
    tensor = f"{g.prefix}ffn_down"
    _product(g, "hidden", "branch", tensor, g.hp.matrix(f"{tensor}.weight", (width, ffn)))


def _product(g: ModelGraph, source: str, out: str, tensor: str, weight: Weight) -> None:
    """out = source times a matrix, both clipped if the file has limits."""
    limits = [g.hp.bias(f"{tensor}.{side}_{end}", 1) for side in ("input", "output") for end in ("min", "max")]
    least, most, lowest, highest = limits
    if least is not None and most is not None:
        clipped = g.buffer(f"clipped {source}", weight.columns)
        g.add(ClipBetween(source, clipped, weight.columns, least, most))
        source = clipped
    g.add(MatMul(source, out, weight))
    if lowest is not None and highest is not None:
        g.add(ClipBetween(out, out, weight.n_rows, lowest, highest))


def _standardise(g: ModelGraph, width: int) -> None:
    """joined = (joined - bias) * scale, if the file has them."""
    if "v.std_bias" in g.hp.tensors:
        scale = MulVector(g.hp.vector("v.std_scale", width), "joined", width)
        turned = Scale("joined", width, -1.0)
        g.add(turned, AddVector(g.hp.vector("v.std_bias", width), "joined", width), scale, turned)


def _table(hp: Hyperparameters, width: int) -> Weight:
    """The positions of columns, then those of rows."""
    name = "v.position_embd.weight"
    info = hp.tensors.get(name)
    n_rows = 0 if info is None else math.prod(info.shape[:-1])
    if n_rows % 2:
        raise BadGGUF(f"{name} has {n_rows} positions, which are not as many for rows as for columns")
    return hp.kernel(name, n_rows, width)


def _positions(table: Floats, grid: Size) -> Floats:
    """Positions of a grid, row by row: float32[N, D]."""
    down, across = grid
    half = len(table) // 2
    if max(grid) > half:
        raise BadImage(f"an image of {across} x {down} patches; the model knows {half} columns and rows")
    return (table[None, :across] + table[half : half + down, None]).reshape(down * across, -1)


def _plan(size: Size, patch: int, block: int, n_most: int) -> MediaPlan:
    """The one tile of an image: as large as `n_most` rows allow, its shape kept."""
    height, width = gemma4_size(size, patch, block, n_most)
    tile = TilePlan((height // patch, width // patch), height * width // (patch * block) ** 2)
    return MediaPlan((tile,), (BEFORE, 0, AFTER))


PROJECTOR = Projector(build)
