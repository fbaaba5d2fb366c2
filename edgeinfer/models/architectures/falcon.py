"""Falcon (the first): attention and feed-forward network read norms of the same rows, in the 7B model the same norm.

LayerNorms, GELU without a gate, one or few heads of keys and values. Source: The Falcon Series (arXiv 2311.16867).
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
    """The spec of a Falcon. Raises BadGGUF where tensors or keys are missing."""
    g = ModelGraph(hp, Sizes.read(hp, norms="layer"))
    rope, has_two_norms = rope_table(hp, g.sizes.rotary_width), "blk.0.attn_norm_2.weight" in hp.tensors
    source = "normed_ffn" if has_two_norms else "normed"
    embed(g)
    for number in range(g.sizes.n_layers):
        g.stage(f"blk.{number}")
        norm(g, "attn_norm", source)
        if has_two_norms:
            norm(g, "attn_norm_2")
        attention(g, rope)
        feed_forward(g, "gelu", gate="none", source=source)
    return head(g)


ARCHITECTURE = Architecture(build)
