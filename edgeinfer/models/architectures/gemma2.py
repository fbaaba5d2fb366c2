"""Gemma 2: scaled embeddings, norms before and after each branch, GELU, soft caps, a window in every other layer.

The file's norm weights are stored as 1 + weight. Source: Gemma 2 (arXiv 2408.00118).
"""

from __future__ import annotations

from edgeinfer.graph.graph import ModelSpec
from edgeinfer.models.architectures import Architecture
from edgeinfer.models.blocks import attention, embed, feed_forward, head, norm, rejoin
from edgeinfer.models.hyperparameters import Hyperparameters
from edgeinfer.models.model_graph import ModelGraph
from edgeinfer.models.rope import rope_table
from edgeinfer.models.sizes import Sizes, windows

LAYERS_OF_27B = 46


def build(hp: Hyperparameters) -> ModelSpec:
    """The spec of a Gemma 2 model. Raises BadGGUF where tensors or keys are missing."""
    g = ModelGraph(hp, Sizes.read(hp))
    sizes, rope = g.sizes, rope_table(hp, g.sizes.rotary_width)
    # Files do not store the query scale. It is 1 / sqrt(head width), except 1 / sqrt(width / heads) for the 27B model.
    scale = (sizes.width / sizes.heads if sizes.n_layers == LAYERS_OF_27B else sizes.head_width) ** -0.5
    soft_cap = hp.number("attn_logit_softcapping", 50.0) or None
    embed(g, sizes.width**0.5)
    for number, window in enumerate(windows(hp, sizes, period=2, default=4096)):
        g.stage(f"blk.{number}")
        norm(g, "attn_norm")
        attention(g, rope, window=window, soft_cap=soft_cap, scale=scale, out="branch")
        rejoin(g, "post_attention_norm")
        norm(g, "ffn_norm")
        feed_forward(g, "gelu_tanh", out="branch")
        rejoin(g, "post_ffw_norm")
    return head(g, hp.number("final_logit_softcapping", 30.0) or None)


ARCHITECTURE = Architecture(build)
