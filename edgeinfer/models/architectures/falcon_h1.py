"""Falcon-H1: attention and Mamba-2 side by side in every layer, on the same normed input; both are added to the stream.

Files hold the model's multipliers in their weights. Source: Falcon-H1 (arXiv 2507.22448).
"""

from __future__ import annotations

from edgeinfer.graph.graph import ModelSpec
from edgeinfer.graph.ops.rms_norm import RMSNorm
from edgeinfer.models.architectures import Architecture
from edgeinfer.models.blocks import attention, embed, feed_forward, head, norm
from edgeinfer.models.hyperparameters import Hyperparameters
from edgeinfer.models.mamba2 import Mamba2
from edgeinfer.models.model_graph import ModelGraph
from edgeinfer.models.rope import rope_table
from edgeinfer.models.sizes import Sizes


def build(hp: Hyperparameters) -> ModelSpec:
    """The spec of a Falcon-H1. Raises BadGGUF where tensors or keys are missing."""
    g = ModelGraph(hp, Sizes.read(hp))
    mamba, rope = Mamba2.read(hp), rope_table(hp, g.sizes.rotary_width)
    embed(g)
    for number in range(g.sizes.n_layers):
        g.stage(f"blk.{number}")
        norm(g, "attn_norm")
        attention(g, rope)
        mamba.add(g)
        # its converter leaves out the ending that other tensors have
        weight = hp.vector(f"{g.prefix}ffn_norm", g.sizes.width)
        g.add(RMSNorm("x", "normed", weight, g.sizes.width, g.sizes.epsilon))
        feed_forward(g)
    return head(g)


ARCHITECTURE = Architecture(build, spelling="falcon-h1")
