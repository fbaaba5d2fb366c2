"""ERNIE 4.5's mixtures: the dense model's attention; experts are chosen by softmax plus a bias per expert.

The first layers are dense, and after them one in `interleave_moe_layer_step` has experts, with shared ones.
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
    """The spec of an ERNIE 4.5 mixture. Raises BadGGUF where tensors or keys are missing."""
    g = ModelGraph(hp, Sizes.read(hp, mixture=True))
    rope = rope_table(hp, g.sizes.rotary_width)
    mixture = Mixture.read(hp, g.sizes.ffn_width, normalised=True, shared_scored=False)
    n_dense, step = hp.integer("leading_dense_block_count", 0, least=0), hp.integer("interleave_moe_layer_step", 1)
    embed(g)
    for number in range(g.sizes.n_layers):
        g.stage(f"blk.{number}")
        norm(g, "attn_norm")
        attention(g, rope, paired=True)
        norm(g, "ffn_norm")
        if number >= n_dense and (number + 1) % step == 0:
            mixture.add(g)
        else:
            feed_forward(g)
    return head(g)


ARCHITECTURE = Architecture(build, spelling="ernie4_5-moe")
