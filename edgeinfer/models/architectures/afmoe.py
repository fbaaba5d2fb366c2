"""AFMoE (Arcee Trinity): mixtures of experts with norms before and after each branch; the first layers are dense.

Three layers with a window and rotary embedding are followed by one with neither. Queries and keys are normed per head,
a gate multiplies the head outputs, and embeddings are scaled as in muP. Shares are sigmoids; experts are chosen with a
per-expert bias; every token also uses a shared expert. Source: Arcee Trinity Large Technical Report (arXiv 2602.17004).
"""

from __future__ import annotations

from edgeinfer.graph.graph import ModelSpec
from edgeinfer.models.architectures import Architecture
from edgeinfer.models.blocks import attention, embed, feed_forward, head, norm, rejoin
from edgeinfer.models.hyperparameters import Hyperparameters
from edgeinfer.models.mixture import Mixture
from edgeinfer.models.model_graph import ModelGraph
from edgeinfer.models.rope import rope_table
from edgeinfer.models.sizes import Sizes, windows

WINDOW_PERIOD = 4


def build(hp: Hyperparameters) -> ModelSpec:
    """The spec of an AFMoE. Raises BadGGUF if tensors or keys are missing."""
    g = ModelGraph(hp, Sizes.read(hp, mixture=True))
    rope, mixture = rope_table(hp, g.sizes.rotary_width), Mixture.read_sigmoid(hp, g.sizes, normalised=True)
    hp.integer("attention.sliding_window")  # needed to know which layers are rotated
    n_dense = hp.integer("leading_dense_block_count", 0, least=0)
    embed(g, g.sizes.width**0.5)
    for number, window in enumerate(windows(hp, g.sizes, period=WINDOW_PERIOD)):
        g.stage(f"blk.{number}")
        norm(g, "attn_norm")
        rotates = None if window is None else rope
        attention(g, rotates, window=window, head_norms=True, gate="attn_gate", out="branch")
        rejoin(g, "post_attention_norm")
        norm(g, "ffn_norm")
        if number < n_dense:
            feed_forward(g, out="branch")
        else:
            mixture.branch(g)
        rejoin(g, "post_ffw_norm")
    return head(g)


ARCHITECTURE = Architecture(build)
