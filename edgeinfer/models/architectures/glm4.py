"""GLM 4: norms before and after each branch, gate and up in one tensor, half of each head rotated in adjacent pairs."""

from __future__ import annotations

from edgeinfer.graph.graph import ModelSpec
from edgeinfer.models.architectures import Architecture
from edgeinfer.models.blocks import attention, embed, feed_forward, head, norm, rejoin
from edgeinfer.models.hyperparameters import Hyperparameters
from edgeinfer.models.model_graph import ModelGraph
from edgeinfer.models.rope import rope_table
from edgeinfer.models.sizes import Sizes


def build(hp: Hyperparameters) -> ModelSpec:
    """The spec of a GLM 4. Raises BadGGUF where tensors or keys are missing."""
    g = ModelGraph(hp, Sizes.read(hp))
    rope = rope_table(hp, g.sizes.rotary_width)
    embed(g)
    for number in range(g.sizes.n_layers):
        g.stage(f"blk.{number}")
        norm(g, "attn_norm")
        attention(g, rope, paired=True, out="branch")
        rejoin(g, "post_attention_norm")
        norm(g, "ffn_norm")
        feed_forward(g, gate="in ffn_up", out="branch")
        rejoin(g, "post_ffw_norm")
    return head(g)


ARCHITECTURE = Architecture(build)
