"""StableLM: LayerNorms; a part of each head is rotated. The 12B model has parallel branches, so only one norm a layer.

Norms of query and key heads (12B) are LayerNorms with a weight per head and are refused.
"""

from __future__ import annotations

from edgeinfer.errors import UnsupportedModel
from edgeinfer.graph.graph import ModelSpec
from edgeinfer.models.architectures import Architecture
from edgeinfer.models.blocks import attention, embed, feed_forward, head, norm
from edgeinfer.models.hyperparameters import Hyperparameters
from edgeinfer.models.model_graph import ModelGraph
from edgeinfer.models.rope import rope_table
from edgeinfer.models.sizes import Sizes


def build(hp: Hyperparameters) -> ModelSpec:
    """The spec of a StableLM. Raises BadGGUF where tensors or keys are missing, UnsupportedModel for head norms."""
    if "blk.0.attn_q_norm.weight" in hp.tensors:
        raise UnsupportedModel("StableLM's norms of query and key heads are LayerNorms, which edgeinfer lacks")
    g = ModelGraph(hp, Sizes.read(hp, norms="layer"))
    rope = rope_table(hp, g.sizes.rotary_width)
    embed(g)
    for number in range(g.sizes.n_layers):
        g.stage(f"blk.{number}")
        norm(g, "attn_norm")
        attention(g, rope)
        if f"{g.prefix}ffn_norm.weight" in hp.tensors:
            norm(g, "ffn_norm")
        feed_forward(g)
    return head(g)


ARCHITECTURE = Architecture(build)
