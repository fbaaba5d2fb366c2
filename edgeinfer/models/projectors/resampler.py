"""MiniCPM-V 2.5 to 4.5 and MiniCPM-o: SigLIP, then learned queries that attend to its rows.

Whatever its shape, a tile becomes as many rows as there are queries. Keys, unlike values, have the sines and cosines of
their columns and rows added. Files of MiniCPM-V 2.0 (version 1) differ and are refused. Source: arXiv 2408.01800.
"""

from __future__ import annotations

import numpy as np

from edgeinfer.errors import BadGGUF, UnsupportedModel
from edgeinfer.graph.operands import PagedKV, Weight
from edgeinfer.graph.ops.add import Add
from edgeinfer.graph.ops.attention import Attention
from edgeinfer.graph.ops.hidden_rows import HiddenRows
from edgeinfer.graph.ops.layer_norm import LayerNorm
from edgeinfer.graph.ops.matmul import MatMul
from edgeinfer.graph.ops.store_kv import StoreKV
from edgeinfer.graph.step import Floats
from edgeinfer.models.hyperparameters import Hyperparameters
from edgeinfer.models.model_graph import ModelGraph
from edgeinfer.models.projectors import Projector
from edgeinfer.models.sizes import LayerSizes, Sizes
from edgeinfer.models.vision import transformer
from edgeinfer.models.vision.encoder import ImageEncoder, MediaPlan, Pixels, SecondTrunk, Size, TileInput
from edgeinfer.models.vision.minicpm import Slicing
from edgeinfer.models.vision.positions import nearest, sines_and_cosines

VERSION, VERSIONS = "minicpmv_version", (2, 3, 4, 5, 6, 100045)
"""2: MiniCPM-V 2.5; 3: 2.6; 4: o 2.6; 5: 4.0; 6: 4.5 and o 4.0; 100045: o 4.5."""
UNNUMBERED = 2
HEAD_WIDTH = 128
EPSILON = 1e-6
"""Of the resampler's norms, whatever that of the layers is."""


def build(hp: Hyperparameters) -> ImageEncoder:
    """The encoder of a file. Raises BadGGUF where tensors or keys are missing, UnsupportedModel for other versions."""
    version = hp.integer(VERSION, UNNUMBERED, least=0) or UNNUMBERED
    if version not in VERSIONS:
        names = ", ".join(map(str, VERSIONS))
        raise UnsupportedModel(f"the projector is that of MiniCPM-V version {version}; edgeinfer has: {names}")
    slicing = Slicing.of(hp, 1)
    slicing = slicing.unnumbered() if version == UNNUMBERED else slicing
    n_most = slicing.n_most
    g = transformer.begun(hp, n_most)
    own, activation = g.sizes.width, transformer.activation_of(hp)
    transformer.embed_patches(g, slicing.patch, positions=True)
    transformer.layers(g, activation)
    transformer.norm(g, "v.post_ln", out="x")
    width = transformer.rows_of(hp, "resampler.attn.q.weight")
    queries = hp.columns_of("resampler.query", width)
    n_queries = queries.n_rows
    if width % HEAD_WIDTH:
        raise BadGGUF(f"the resampler's queries have {width} numbers; heads are {HEAD_WIDTH} wide")
    if 2 * n_queries > (slicing.tiling.side // slicing.patch) ** 2:
        raise BadGGUF(f"the resampler has {n_queries} queries, too many for tiles of {slicing.tiling.side} pixels")
    last = transformer.begun_projection(hp, n_queries, width, width)
    transformer.product(last, "joined", "x", "resampler.attn.out", width, width)
    last.add(_norm(last, "x", "post", width))
    transformer.product(last, "x", "joined", "resampler.proj", width, width)

    def tiles(pixels: Pixels, plan: MediaPlan) -> list[TileInput]:
        return [TileInput(patches) for patches in slicing.patches(pixels)]

    return ImageEncoder(
        trunk=transformer.end(g),
        second=_second_trunk(hp, n_most, own, queries),
        projection=transformer.end(last, "joined"),
        n_most=n_most,
        width=width,
        placeholder=r"\(<image>\./</image>\)",
        plan=lambda size: slicing.plan(size, lambda _: n_queries),
        tiles=tiles,
        joined=lambda rows, _: rows[:n_queries],
        positions=(transformer.square_table(hp, own), nearest),
        unread=r"resampler\.pos_emb(ed|d)(_k)?",
    )


def _second_trunk(hp: Hyperparameters, n_most: int, own: int, queries: Weight) -> SecondTrunk:
    """The resampler up to its attention.

    A hidden row is a row of the trunk, `own` numbers, and what its key has added, and a query, while there are any:
    there are more patches than queries, and what the others see is left out.
    """
    width, n_queries = queries.columns, queries.n_rows
    heads = width // HEAD_WIDTH
    layer = LayerSizes(heads, heads, width, HEAD_WIDTH, HEAD_WIDTH, HEAD_WIDTH)
    widths = HEAD_WIDTH, HEAD_WIDTH, HEAD_WIDTH, width
    sizes = Sizes(1, width, heads, heads, *widths, 0, n_most, EPSILON, (True,), (layer,))
    g = ModelGraph(hp, sizes)
    cache = g.cache(PagedKV(heads, HEAD_WIDTH, HEAD_WIDTH))
    g.stage("embed", "resampler.")
    rows, asked, normed = g.buffer("rows", own), g.buffer("asked", width), g.buffer("normed", width)
    query, key, value = (g.buffer(name, width, heads=heads) for name in ("query", "key", "value"))
    g.add(HiddenRows(rows, own), HiddenRows(query, width, own), HiddenRows(asked, width, own + width))
    g.add(MatMul(rows, normed, hp.matrix("resampler.kv.weight", (width, own))), _norm(g, normed, "kv", width))
    g.add(Add(normed, query, width))  # which holds keys until they are multiplied: rows are as wide as the model
    g.add(_product(g, query, key, "k", width), _product(g, normed, value, "v", width))
    g.add(StoreKV(key, value, cache, heads, HEAD_WIDTH, HEAD_WIDTH))
    g.add(_norm(g, asked, "q", width), _product(g, asked, query, "q", width))
    shape = heads, heads, HEAD_WIDTH, HEAD_WIDTH
    g.add(Attention(query, value, cache, *shape, HEAD_WIDTH**-0.5, causal=False))

    def tokens(rows: Floats, grid: Size, table: Floats) -> TileInput:
        hidden = np.zeros((len(rows), own + 2 * width), np.float32)
        hidden[:, :own], hidden[:, own : own + width] = rows, sines_and_cosines(grid, width)
        hidden[:n_queries, own + width :] = table
        return TileInput(hidden)

    return SecondTrunk(transformer.end(g, value), tokens, lambda n_patches: n_patches, queries)


def _product(g: ModelGraph, source: str, out: str, name: str, width: int) -> MatMul:
    """A product before the attention, of whole rows to rows of heads."""
    tensor = f"resampler.attn.{name}"
    return MatMul(source, out, g.hp.matrix(f"{tensor}.weight", (width, width)), g.hp.bias(f"{tensor}.bias", width))


def _norm(g: ModelGraph, buffer: str, name: str, width: int) -> LayerNorm:
    """A norm of the resampler, in place."""
    weight, bias = (g.hp.vector(f"resampler.ln_{name}.{part}", width) for part in ("weight", "bias"))
    return LayerNorm(buffer, buffer, weight, bias, width, EPSILON)


PROJECTOR = Projector(build)
