"""GLM 4.5, 4.6 and 4.7: mixtures of experts plus a shared expert used by every token; the first layers are dense.

Shares are sigmoids of scores; experts are chosen by share plus a per-expert bias, from the best groups if there are
several. Part of each head is rotated, with half-split pairs; larger models norm queries and keys per head. The norm
before the feed-forward branch is called post_attention_norm. Source: GLM-4.5 (arXiv 2508.06471).
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
    """The spec of a GLM 4.5. Raises BadGGUF where tensors or keys are missing."""
    g = ModelGraph(hp, Sizes.read(hp, mixture=True))
    rope, head_norms = rope_table(hp, g.sizes.rotary_width), "blk.0.attn_q_norm.weight" in hp.tensors
    mixture = Mixture.read_sigmoid(hp, g.sizes, normalised=False)
    n_dense = hp.integer("leading_dense_block_count", 0, least=0)
    embed(g)
    for number in range(g.sizes.n_layers):
        g.stage(f"blk.{number}")
        norm(g, "attn_norm")
        attention(g, rope, head_norms=head_norms)
        norm(g, "post_attention_norm")
        if number < n_dense:
            feed_forward(g)
        else:
            mixture.add(g)
    return head(g)


ARCHITECTURE = Architecture(build)
