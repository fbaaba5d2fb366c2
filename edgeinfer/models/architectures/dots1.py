"""dots.llm1: Qwen 3's attention, and DeepSeek-V3's mixture of experts with sigmoid shares; the first layers are dense.

Source: dots.llm1 (arXiv 2506.05767).
"""

from __future__ import annotations

from edgeinfer.graph.graph import ModelSpec
from edgeinfer.models.architectures import Architecture
from edgeinfer.models.blocks import attention, embed, feed_forward, head, norm
from edgeinfer.models.hyperparameters import Hyperparameters
from edgeinfer.models.mixture import Mixture
from edgeinfer.models.model_graph import ModelGraph
from edgeinfer.models.rope import rope_table
from edgeinfer.models.sizes import Sizes


def build(hp: Hyperparameters) -> ModelSpec:
    """The spec of a dots.llm1. Raises BadGGUF where tensors or keys are missing."""
    g = ModelGraph(hp, Sizes.read(hp, mixture=True))
    rope, mixture = rope_table(hp, g.sizes.rotary_width), Mixture.read_sigmoid(hp, g.sizes, normalised=False)
    n_dense = hp.integer("leading_dense_block_count", 0, least=0)
    embed(g)
    for number in range(g.sizes.n_layers):
        g.stage(f"blk.{number}")
        norm(g, "attn_norm")
        attention(g, rope, head_norms=True)
        norm(g, "ffn_norm")
        if number < n_dense:
            feed_forward(g)
        else:
            mixture.add(g)
    return head(g)


ARCHITECTURE = Architecture(build)
