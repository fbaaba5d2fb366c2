"""MiMo-V2 (Flash, 2.5): windows with attention sinks, values narrower than keys, a mixture without a shared expert.

Layers with a window have their own number of key-value heads and rotary base; a part of each head is rotated. What
attention gives is scaled. Shares are sigmoids, chosen with a bias; layers without a router are dense. Source:
MiMo-V2-Flash (arXiv 2601.02780).
"""

from __future__ import annotations

from edgeinfer.graph.graph import ModelSpec
from edgeinfer.models.architectures import Architecture
from edgeinfer.models.blocks import attention, embed, head, join, norm
from edgeinfer.models.decoder import Feed
from edgeinfer.models.hyperparameters import Hyperparameters
from edgeinfer.models.mixture import SIGMOID_GATING, Mixture
from edgeinfer.models.model_graph import ModelGraph
from edgeinfer.models.rope import local_rope_table, rope_table
from edgeinfer.models.sizes import Sizes, windows
from edgeinfer.models.trained_heads import TrainedHead, next_token_head


def build(hp: Hyperparameters) -> ModelSpec:
    """The spec of a MiMo-V2. Raises BadGGUF where tensors or keys are missing."""
    g = ModelGraph(hp, Sizes.read(hp, mixture=True))
    layer = _layer(g)
    embed(g)
    for number in range(g.sizes.n_layers):
        g.stage(f"blk.{number}")
        layer(g)
    return head(g)


def guess(hp: Hyperparameters) -> TrainedHead:
    """One of the blocks that predict tokens beyond the next one, from rows that are not normed."""
    g = ModelGraph(hp, Sizes.read(hp, mixture=True, guessing=True))
    return next_token_head(g, _layer(g), is_normed=False)


def _layer(g: ModelGraph) -> Feed:
    """What adds the ops of a layer."""
    hp, reaches = g.hp, windows(g.hp, g.sizes)
    mixture = Mixture.read(hp, g.sizes.ffn_width, normalised=True, gating=SIGMOID_GATING)
    everywhere, local = rope_table(hp, g.sizes.rotary_width), local_rope_table(hp, g.sizes.rotary_width)
    scale = hp.number("attention.value_scale", 0.0) or 1.0

    def add(g: ModelGraph) -> None:
        window = reaches[g.number]
        norm(g, "attn_norm")
        attention(g, everywhere if window is None else local, window=window, out="branch")
        join(g, scale)
        norm(g, "ffn_norm")
        mixture.where_routed(g)

    return add


ARCHITECTURE = Architecture(build, head=guess)
