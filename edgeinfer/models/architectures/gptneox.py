"""GPT-NeoX and Pythia: attention and feed-forward network in parallel, each with its own norm.

LayerNorms, biases everywhere, GELU without a gate; part of each head is rotated; queries, keys and values are one
tensor. In some models the branches are sequential (`use_parallel_residual`). Source: GPT-NeoX-20B (arXiv 2204.06745).
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
    """The spec of a GPT-NeoX. Raises BadGGUF where tensors or keys are missing."""
    g = ModelGraph(hp, Sizes.read(hp, norms="layer"))
    rope, parallel = rope_table(hp, g.sizes.rotary_width), hp.flag("use_parallel_residual", default=True)
    embed(g)
    for number in range(g.sizes.n_layers):
        g.stage(f"blk.{number}")
        norm(g, "attn_norm")
        if parallel:  # of the input before attention is added
            norm(g, "ffn_norm", "normed_ffn")
        attention(g, rope)
        if not parallel:
            norm(g, "ffn_norm", "normed_ffn")
        feed_forward(g, "gelu", gate="none", source="normed_ffn")
    return head(g)


ARCHITECTURE = Architecture(build)
