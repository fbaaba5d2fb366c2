"""DeciLM and Nemotron 51B, Super and Ultra: Llama's layers, of which an optimiser left some out in part.

A layer may have no attention, or a single product in place of it, and no feed-forward network. Source: Puzzle (arXiv
2411.19146).
"""

from __future__ import annotations

from edgeinfer.graph.graph import ModelSpec
from edgeinfer.models.architectures import Architecture
from edgeinfer.models.blocks import attention, embed, feed_forward, head, norm, project
from edgeinfer.models.hyperparameters import Hyperparameters
from edgeinfer.models.model_graph import ModelGraph
from edgeinfer.models.rope import rope_table
from edgeinfer.models.sizes import Sizes


def build(hp: Hyperparameters) -> ModelSpec:
    """The spec of a DeciLM. Raises BadGGUF where tensors or keys are missing."""
    g = ModelGraph(hp, Sizes.read(hp, hybrid=True))
    n_layers, attends = g.sizes.n_layers, g.sizes.attends
    rope, heads = rope_table(hp, g.sizes.rotary_width), hp.counts("attention.head_count", n_layers)
    embed(g)
    for number in range(n_layers):
        g.stage(f"blk.{number}")
        if heads[number]:
            norm(g, "attn_norm")
        if attends[number]:
            attention(g, rope, paired=True)
        elif heads[number]:
            project(g, "normed", "attn_output", g.sizes.width, "x")
        if g.sizes.ffn_width:
            norm(g, "ffn_norm")
            feed_forward(g)
    return head(g)


ARCHITECTURE = Architecture(build)
