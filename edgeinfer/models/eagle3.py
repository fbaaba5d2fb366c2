"""EAGLE-3: a trained head in a file of its own, which reads the model's hidden rows of three layers.

In: Hyperparameters of the file, with the embedding of the model if it has none. Out: a `TrainedHead`: a product of the
three rows, and one layer of Llama's shape whose attention reads the normed embedding of a token beside that product.
The file has its own vocabulary, a part of the model's, if it has a tensor `d2t`. Source: arXiv 2503.01840, and the keys
that llama.cpp's converter writes. Raises BadGGUF for missing tensors or wrong shapes.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from edgeinfer.errors import BadGGUF
from edgeinfer.graph.operands import Rows
from edgeinfer.graph.ops.add import Add
from edgeinfer.graph.ops.embed import Embed
from edgeinfer.graph.ops.hidden_rows import HiddenRows
from edgeinfer.graph.ops.join_parts import JoinParts
from edgeinfer.graph.ops.matmul import MatMul
from edgeinfer.graph.ops.rms_norm import RMSNorm
from edgeinfer.graph.ops.take_outputs import TakeOutputs
from edgeinfer.models.blocks import attention, feed_forward, norm
from edgeinfer.models.hyperparameters import Hyperparameters
from edgeinfer.models.model_graph import ModelGraph
from edgeinfer.models.rope import rope_table
from edgeinfer.models.sizes import LAYERS_MAX, Sizes
from edgeinfer.models.trained_heads import TrainedHead

KEY = "eagle3"
N_TAPS = 3
VOCABULARY = "d2t"
"""The tensor with the model's token for each token of the head's own vocabulary."""


def build(hp: Hyperparameters) -> TrainedHead:
    """The head of a file. Raises BadGGUF where tensors or keys are missing."""
    g = ModelGraph(hp, Sizes.read(hp))
    if g.sizes.n_layers != 1:
        raise BadGGUF(f"{KEY}.block_count is {g.sizes.n_layers}; an EAGLE-3 head has one layer")
    width, target = g.sizes.width, hp.integer("target_hidden_size")
    _embed(g, target)
    g.stage("blk.0")
    for rows, name in (("embedded", "attn_norm"), ("x", "attn_norm_2")):
        norm(g, name, out="embedded" if rows == "embedded" else "fused", source=rows)
    joined = g.buffer("joined", 2 * width)
    g.add(JoinParts(("embedded", "fused"), joined, width))
    if hp.flag("norm_before_residual", default=False):
        g.add(JoinParts(("fused",), "x", width))
    attention(g, rope_table(hp, g.sizes.rotary_width), paired=True, source=joined)
    norm(g, "ffn_norm")
    feed_forward(g)
    n_tokens = _head(g)
    spec = replace(g.spec(), n_vocab=n_tokens)
    return TrainedHead(spec, tap_layers(hp), "x_out", N_TAPS * target, VOCABULARY if VOCABULARY in hp.tensors else "")


def _embed(g: ModelGraph, target: int) -> None:
    """The token's embedding, and in `x` the product of the model's rows, or the head's own row in its place."""
    hp, width, total = g.hp, g.sizes.width, N_TAPS * target
    g.stage("embed")
    embedded, taps, x, own = (
        g.buffer(name, size) for name, size in (("embedded", width), ("taps", total), ("x", width), ("own", width))
    )
    g.add(Embed(hp.matrix("token_embd.weight", (g.sizes.n_vocab, width)), embedded))
    g.add(HiddenRows(taps, total), HiddenRows(own, width, total))
    if hp.flag("norm_before_fc", default=False):
        g.add(RMSNorm(taps, taps, hp.vector("enc.output_norm.weight", total), total, g.sizes.epsilon))
    # The rows of either kind are zeros where the other one is given, and so is their product.
    g.add(MatMul(taps, x, hp.matrix("fc.weight", (width, total))), Add(own, x, width))


def _head(g: ModelGraph) -> int:
    """Norm and output product of the requested rows; returns the size of the head's vocabulary."""
    hp, width = g.hp, g.sizes.width
    g.stage("head")
    tensor = "output.weight" if "output.weight" in hp.tensors else "token_embd.weight"
    output = hp.columns_of(tensor, width)
    if VOCABULARY in hp.tensors and hp.tensors[VOCABULARY].shape != (output.n_rows,):
        raise BadGGUF(f"{VOCABULARY} has shape {hp.tensors[VOCABULARY].shape} for {output.n_rows} rows of {tensor}")
    taken, normed = g.buffer("x_out", width, Rows.OUTPUTS), g.buffer("normed_out", width, Rows.OUTPUTS)
    logits = g.buffer("logits", output.n_rows, Rows.OUTPUTS)
    weight = hp.vector("output_norm.weight", width)
    g.add(TakeOutputs("x", taken, width), RMSNorm(taken, normed, weight, width, g.sizes.epsilon))
    g.add(MatMul(normed, logits, output))
    return output.n_rows


def tap_layers(hp: Hyperparameters) -> tuple[int, ...]:
    """The layers whose input rows the head reads."""
    full = f"{KEY}.target_layers"
    found = hp.metadata.get(full)
    if not isinstance(found, np.ndarray) or found.shape != (N_TAPS,) or not np.issubdtype(found.dtype, np.integer):
        raise BadGGUF(f"{full} must be an array of {N_TAPS} whole numbers")
    layers = tuple(int(layer) for layer in found)
    if not all(0 <= layer < LAYERS_MAX for layer in layers):
        raise BadGGUF(f"{full} is {list(layers)}; there are no such layers")
    return layers
