"""MiniCPM3: multi-head latent attention in a dense model, with scaled branches, embeddings and logits.

Queries come from one latent row, keys and values of all heads from another. The rotated parts have their own
projections; that of the keys is shared by all heads. Values are narrower than keys. Sources: DeepSeek-V2 (arXiv
2405.04434) for the attention, MiniCPM (arXiv 2404.06395) for the scales.
"""

from __future__ import annotations

from math import sqrt

from edgeinfer.errors import BadGGUF
from edgeinfer.graph.graph import ModelSpec
from edgeinfer.models.architectures import Architecture
from edgeinfer.models.blocks import embed, feed_forward, head, join, norm
from edgeinfer.models.hyperparameters import Hyperparameters
from edgeinfer.models.latent_attention import LatentAttention
from edgeinfer.models.model_graph import ModelGraph
from edgeinfer.models.rope import rope_table
from edgeinfer.models.sizes import Sizes

EMBEDDING_SCALE, DEPTH_SCALE, BASE_WIDTH = 12.0, 1.4, 256
"""MiniCPM3-4B's scales, which files do not store; it is the only model of the family."""


def build(hp: Hyperparameters) -> ModelSpec:
    """The spec of a MiniCPM3. Raises BadGGUF where tensors or keys are missing."""
    g = ModelGraph(hp, Sizes.read(hp))
    if g.sizes.heads != g.sizes.kv_heads:
        raise BadGGUF(f"minicpm3 has {g.sizes.heads} heads and {g.sizes.kv_heads} kv heads; each has its own")
    attention, rope = LatentAttention.read(hp, g.sizes), rope_table(hp, g.sizes.rotary_width)
    scale = DEPTH_SCALE / sqrt(g.sizes.n_layers)
    embed(g, EMBEDDING_SCALE)
    for number in range(g.sizes.n_layers):
        g.stage(f"blk.{number}")
        norm(g, "attn_norm")
        attention.add(g, rope, out="branch")
        join(g, scale)
        norm(g, "ffn_norm")
        feed_forward(g, out="branch")
        join(g, scale)
    return head(g, scale=BASE_WIDTH / g.sizes.width)


ARCHITECTURE = Architecture(build)
