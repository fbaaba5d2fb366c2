"""MiniCPM-V 4.6: SigLIP whose patches are merged by fours after some layers, and once more at the end.

Before the first merge the patches of each 2 x 2 window attend to each other; the later layers run on a quarter of the
rows. Files for four times as many rows merge at the end alone. Source: MiniCPMV4_6Model of transformers.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgeinfer.errors import BadGGUF
from edgeinfer.graph.activations import Activation
from edgeinfer.graph.ops.act import Act
from edgeinfer.graph.ops.hidden_rows import HiddenRows
from edgeinfer.graph.ops.layer_norm import LayerNorm
from edgeinfer.graph.ops.matmul import MatMul
from edgeinfer.graph.step import Floats, Int32s
from edgeinfer.models.hyperparameters import Hyperparameters
from edgeinfer.models.images.patches import block_order
from edgeinfer.models.projectors import Projector
from edgeinfer.models.vision import transformer
from edgeinfer.models.vision.encoder import (
    ImageEncoder,
    MediaPlan,
    Pixels,
    SecondTrunk,
    Size,
    TileInput,
    joined_neighbours,
)
from edgeinfer.models.vision.minicpm import Slicing
from edgeinfer.models.vision.positions import nearest
from edgeinfer.models.vision.transformer import KEYS

MERGED = 4
"""Patches that become one row at each merge."""
TWICE, ONCE = 4, 2
"""Patches along the edge of a row of the language model, by how often they are merged."""
MERGER = "v.vit_merger."
EPSILON = 1e-6
"""Of the last norm, whatever that of the layers is."""


def build(hp: Hyperparameters) -> ImageEncoder:
    """The encoder of a file. Raises BadGGUF where tensors or keys are missing."""
    edge = hp.integer(f"{KEYS}projector.scale_factor", TWICE)
    if edge not in (ONCE, TWICE):
        raise BadGGUF(f"{hp.architecture}.{KEYS}projector.scale_factor is {edge}; it must be {ONCE} or {TWICE}")
    slicing = Slicing.of(hp, edge)
    n_most = slicing.n_most
    g = transformer.begun(hp, n_most)
    own, activation = g.sizes.width, transformer.activation_of(hp)
    transformer.embed_patches(g, slicing.patch, positions=True)
    second = None
    if edge == TWICE:
        n_before = hp.counts(f"{KEYS}wa_layer_indexes", 1)[0] + 1
        if n_before >= g.sizes.n_layers:
            raise BadGGUF(f"patches are merged after layer {n_before} of {g.sizes.n_layers}; layers must follow")
        transformer.layers(g, activation, n_layers=n_before)
        g.stage("merger", MERGER)
        transformer.norm(g, f"{MERGER}ln1")
        transformer.attention(g, spans=True)
        second = _second_trunk(hp, n_most // MERGED, activation, n_before)
    else:
        transformer.layers(g, activation)
        transformer.norm(g, "v.post_ln", out="x")
    joined, width = MERGED * own, hp.integer(f"{KEYS}projection_dim")
    last = transformer.begun_projection(hp, n_most // edge**2, joined, width)
    factors, bias = hp.vector("mm.input_norm.weight", joined), hp.bias("mm.input_norm.bias", joined)
    last.add(LayerNorm("joined", "joined", factors, bias, joined, EPSILON))
    inner = transformer.rows_of(hp, "mm.up.weight")
    transformer.product(last, "joined", "inner", "mm.up", inner, joined)
    last.add(Act("inner", "inner", inner, "gelu"))
    transformer.product(last, "inner", "x", "mm.down", width, inner)

    def tiles(pixels: Pixels, plan: MediaPlan) -> list[TileInput]:
        grids = [tile.grid for tile in plan.tiles]
        found = slicing.patches(pixels, [_order(grid, edge) for grid in grids])
        spans = [_windows(grid) if edge == TWICE else None for grid in grids]
        return [TileInput(patches, None, own) for patches, own in zip(found, spans, strict=True)]

    return ImageEncoder(
        trunk=transformer.end(g),
        second=second,
        projection=transformer.end(last),
        n_most=n_most,
        width=width,
        placeholder=r"<\|image_pad\|>|\(<image>\./</image>\)",
        plan=lambda size: slicing.plan(size, lambda grid: grid[0] * grid[1] // edge**2),
        tiles=tiles,
        joined=joined_neighbours(MERGED),
        positions=(
            transformer.square_table(hp, own),
            lambda table, grid: nearest(table, grid)[_order(grid, edge)],
        ),
    )


def _second_trunk(hp: Hyperparameters, n_most: int, activation: Activation, n_before: int) -> SecondTrunk:
    """The first merge, and the layers after it."""
    g = transformer.begun(hp, n_most)
    own = g.sizes.width
    joined = MERGED * own
    g.stage("embed", MERGER)
    g.add(HiddenRows(g.buffer("joined", joined), joined), HiddenRows(g.buffer("x", own), own, joined))
    transformer.norm(g, f"{MERGER}ds_ln", "joined", "joined", joined)
    inner = transformer.rows_of(hp, f"{MERGER}ds_ffn_up.weight")
    transformer.product(g, "joined", "inner", f"{MERGER}ds_ffn_up", inner, joined)
    down = f"{MERGER}ds_ffn_down"
    weight, bias = hp.matrix(f"{down}.weight", (own, inner)), hp.bias(f"{down}.bias", own)
    g.add(Act("inner", "inner", inner, "gelu_tanh"), MatMul("inner", "x", weight, bias, accumulate=True))
    transformer.shared_cache(g)
    for number in range(n_before, g.sizes.n_layers):
        transformer.layer(g, number, activation)
    transformer.norm(g, "v.post_ln", out="x")

    def tokens(rows: Floats, grid: Size, _: Floats) -> TileInput:
        windows = rows.reshape(len(rows) // MERGED, MERGED, -1)
        means = windows.mean(axis=1, dtype=np.float32)
        return TileInput(np.concatenate([windows.reshape(len(windows), -1), means], axis=1))

    return SecondTrunk(transformer.end(g), tokens, lambda n_patches: n_patches // MERGED)


def _order(grid: Size, edge: int) -> NDArray[np.int64]:
    """Patches such that those which are merged follow one another, at each merge: int64[N]."""
    order = block_order(grid, 2)
    if edge == ONCE:
        return order
    return order.reshape(-1, MERGED)[block_order((grid[0] // 2, grid[1] // 2), 2)].reshape(-1)


def _windows(grid: Size) -> Int32s:
    """The first and last patch of each one's window: int32[N, 2]."""
    first = np.arange(grid[0] * grid[1], dtype=np.int32) // MERGED * MERGED
    return np.stack([first, first + (MERGED - 1)], axis=1)


PROJECTOR = Projector(build)
