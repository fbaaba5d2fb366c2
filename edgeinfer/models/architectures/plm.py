"""PLM: DeepSeek-V2's latent attention without a latent row of queries, and squared ReLU without a gate.

Source: PLM (arXiv 2503.12167).
"""

from __future__ import annotations

from edgeinfer.graph.graph import ModelSpec
from edgeinfer.models.architectures import Architecture
from edgeinfer.models.blocks import embed, feed_forward, head, norm
from edgeinfer.models.hyperparameters import Hyperparameters
from edgeinfer.models.latent_attention import LatentAttention
from edgeinfer.models.model_graph import ModelGraph
from edgeinfer.models.rope import rope_table
from edgeinfer.models.sizes import Sizes


def build(hp: Hyperparameters) -> ModelSpec:
    """The spec of a PLM. Raises BadGGUF where tensors or keys are missing."""
    g = ModelGraph(hp, Sizes.read(hp))
    rope, attention = rope_table(hp, g.sizes.rotary_width), LatentAttention.read(hp, g.sizes, paired=True)
    embed(g)
    for number in range(g.sizes.n_layers):
        g.stage(f"blk.{number}")
        norm(g, "attn_norm")
        attention.add(g, rope)
        norm(g, "ffn_norm")
        feed_forward(g, "relu2", gate="none")
    return head(g)


ARCHITECTURE = Architecture(build)
