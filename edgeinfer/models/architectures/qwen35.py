"""Qwen 3.5, 3.6 and 3.8: gated delta nets in most layers, gated attention in every fourth.

Queries and keys of attention are normed per head and partly rotated; each head's output is multiplied by its own
sigmoid gate. The norm before the feed-forward network is called post_attention_norm. Source: Qwen3.5's model card and
its code in transformers (`qwen3_5`).
"""

from __future__ import annotations

from edgeinfer.graph.graph import ModelSpec
from edgeinfer.models.architectures import Architecture
from edgeinfer.models.blocks import attention, embed, feed_forward, head, norm
from edgeinfer.models.delta_net import DeltaNet, attending_layers
from edgeinfer.models.hyperparameters import Hyperparameters
from edgeinfer.models.model_graph import ModelGraph
from edgeinfer.models.rope import rope_table
from edgeinfer.models.sizes import Sizes


def build(hp: Hyperparameters) -> ModelSpec:
    """The spec of a dense Qwen 3.5. Raises BadGGUF where tensors or keys are missing."""
    g = ModelGraph(hp, Sizes.read(hp))
    rope, delta_net = rope_table(hp, g.sizes.rotary_width), DeltaNet.read(hp)
    embed(g)
    for number, attends in enumerate(attending_layers(hp, g.sizes.n_layers)):
        g.stage(f"blk.{number}")
        norm(g, "attn_norm")
        if attends:
            attention(g, rope, head_norms=True, gate="attn_q")
        else:
            delta_net.add(g)
        norm(g, "post_attention_norm")
        feed_forward(g)
    return head(g)


ARCHITECTURE = Architecture(build, axes="interleaved")
