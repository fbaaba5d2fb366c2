"""StarCoder 2: LayerNorms, biases in all products, GELU without a gate. Source: arXiv 2402.19173."""

from __future__ import annotations

from edgeinfer.graph.graph import ModelSpec
from edgeinfer.models.architectures import Architecture
from edgeinfer.models.blocks import attention, embed, feed_forward, head, norm
from edgeinfer.models.hyperparameters import Hyperparameters
from edgeinfer.models.model_graph import ModelGraph
from edgeinfer.models.rope import rope_table
from edgeinfer.models.sizes import Sizes


def build(hp: Hyperparameters) -> ModelSpec:
    """The spec of a StarCoder 2. Raises BadGGUF where tensors or keys are missing."""
    g = ModelGraph(hp, Sizes.read(hp, norms="layer"))
    rope = rope_table(hp, g.sizes.rotary_width)
    embed(g)
    for number in range(g.sizes.n_layers):
        g.stage(f"blk.{number}")
        norm(g, "attn_norm")
        attention(g, rope)
        norm(g, "ffn_norm")
        feed_forward(g, "gelu_tanh", gate="none")
    return head(g)


ARCHITECTURE = Architecture(build)
