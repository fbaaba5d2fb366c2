"""Nemotron (Minitron): LayerNorms, squared ReLU without a gate; a part of each head is rotated.

The file's norm weights are stored as 1 + weight. Source: Nemotron-4 (arXiv 2402.16819).
"""

from __future__ import annotations

from edgeinfer.graph.graph import ModelSpec
from edgeinfer.models.architectures import Architecture
from edgeinfer.models.blocks import attention, embed, feed_forward, head, norm
from edgeinfer.models.hyperparameters import Hyperparameters
from edgeinfer.models.model_graph import ModelGraph
from edgeinfer.models.rope import rope_table
from edgeinfer.models.sizes import Sizes


def build(hp: Hyperparameters) -> ModelSpec:
    """The spec of a Nemotron. Raises BadGGUF where tensors or keys are missing."""
    g = ModelGraph(hp, Sizes.read(hp, norms="layer"))
    rope = rope_table(hp, g.sizes.rotary_width)
    embed(g)
    for number in range(g.sizes.n_layers):
        g.stage(f"blk.{number}")
        norm(g, "attn_norm")
        attention(g, rope)
        norm(g, "ffn_norm")
        feed_forward(g, "relu2", gate="none")
    return head(g)


ARCHITECTURE = Architecture(build)
