"""LFM2: short gated convolutions in most layers, grouped-query attention in a few.

A layer has attention if its number of kv heads is above 0. In the other layers a projection has three parts: the
product of the first and the last goes through a causal convolution by column, whose result is gated by the middle one.
Queries and keys are normed per head; rotary pairs are half-split. Source: LFM2 Technical Report (arXiv 2511.23404).
"""

from __future__ import annotations

from edgeinfer.graph.graph import ModelSpec
from edgeinfer.graph.operands import LayerState
from edgeinfer.graph.ops.causal_conv import CausalConv
from edgeinfer.graph.ops.matmul import MatMul
from edgeinfer.models.architectures import Architecture
from edgeinfer.models.blocks import attention, embed, feed_forward, head, norm, project
from edgeinfer.models.hyperparameters import Hyperparameters
from edgeinfer.models.model_graph import ModelGraph
from edgeinfer.models.rope import rope_table
from edgeinfer.models.sizes import Sizes, windows

TAPS_MAX = 64


def build(hp: Hyperparameters) -> ModelSpec:
    """The spec of a dense LFM2. Raises BadGGUF where tensors or keys are missing."""
    g = ModelGraph(hp, Sizes.read(hp, hybrid=True))
    rope = rope_table(hp, g.sizes.rotary_width)
    taps = hp.integer("shortconv.l_cache", least=2, most=TAPS_MAX)
    embed(g)
    for number, window in enumerate(windows(hp, g.sizes)):
        g.stage(f"blk.{number}")
        norm(g, "attn_norm")
        if g.sizes.attends[number]:
            attention(g, rope, window=window, head_norms=True)
        else:
            short_convolution(g, taps)
        norm(g, "ffn_norm")
        feed_forward(g)
    return head(g, norm="token_embd_norm")


def short_convolution(g: ModelGraph, taps: int) -> None:
    """A projection of `normed` into three parts, a gated convolution over `taps` tokens, and the output projection."""
    width, tensor = g.sizes.width, f"{g.prefix}shortconv.in_proj.weight"
    for third, name in enumerate(("conv_before", "conv_after", "conv_source")):
        rows = (third * width, (third + 1) * width)
        g.add(MatMul("normed", g.buffer(name, width), g.hp.matrix(tensor, (3 * width, width), rows)))
    kernel = g.hp.table(f"{g.prefix}shortconv.conv.weight", (width, taps))
    state, out = g.state(LayerState((taps - 1, width), width)), g.buffer("convolved", width)
    g.add(CausalConv("conv_source", out, state, kernel, width, taps, "conv_before", "conv_after"))
    project(g, out, "shortconv.out_proj", width, "x")


ARCHITECTURE = Architecture(build)
