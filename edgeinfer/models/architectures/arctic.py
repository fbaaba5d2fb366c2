"""Arctic: Llama's layers, and beside each of them a mixture of experts that reads what the layer reads.

The width that files state of the feed-forward network is that of experts; the other is as wide as the model. Source:
Snowflake Arctic (Snowflake, 2024).
"""

from __future__ import annotations

from edgeinfer.graph.graph import ModelSpec
from edgeinfer.graph.ops.add import Add
from edgeinfer.models.architectures import Architecture
from edgeinfer.models.blocks import attention, embed, feed_forward, head, norm
from edgeinfer.models.hyperparameters import Hyperparameters
from edgeinfer.models.mixture import Mixture
from edgeinfer.models.model_graph import ModelGraph
from edgeinfer.models.rope import rope_table
from edgeinfer.models.sizes import Sizes


def build(hp: Hyperparameters) -> ModelSpec:
    """The spec of an Arctic. Raises BadGGUF where tensors or keys are missing."""
    g = ModelGraph(hp, Sizes.read(hp, mixture=True))
    rope, mixture = rope_table(hp, g.sizes.rotary_width), Mixture.read(hp, g.sizes.ffn_width, normalised=True)
    embed(g)
    for number in range(g.sizes.n_layers):
        g.stage(f"blk.{number}")
        norm(g, "ffn_norm_exps")
        mixture.branch(g)
        norm(g, "attn_norm")
        attention(g, rope, paired=True)
        norm(g, "ffn_norm")
        feed_forward(g, width=g.sizes.width)
        g.add(Add("branch", "x", g.sizes.width))
    return head(g)


ARCHITECTURE = Architecture(build)
