"""OLMo: Llama's layers with LayerNorms that have neither weight nor bias.

Source: OLMo (Groeneveld et al., arXiv 2402.00838).
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
    """The spec of an OLMo. Raises BadGGUF where tensors or keys are missing, UnsupportedModel for clamped values."""
    if hp.number("attention.clamp_kqv", 0.0) > 0.0:
        raise UnsupportedModel("this olmo clamps queries, keys and values; edgeinfer has those that do not")
    g = ModelGraph(hp, Sizes.read(hp, norms="bare layer"))
    rope = rope_table(hp, g.sizes.rotary_width)
    embed(g)
    for number in range(g.sizes.n_layers):
        g.stage(f"blk.{number}")
        norm(g, "attn_norm")
        attention(g, rope, paired=True)
        norm(g, "ffn_norm")
        feed_forward(g)
    return head(g)


ARCHITECTURE = Architecture(build)
