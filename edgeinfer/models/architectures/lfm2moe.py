"""LFM2's mixtures: LFM2 with experts as the feed-forward branch in all but the first few layers.

Shares are sigmoids of scores; experts are chosen by share plus a per-expert bias. Source: LFM2 Technical Report (arXiv
2511.23404).
"""

from __future__ import annotations

from edgeinfer.graph.graph import ModelSpec
from edgeinfer.models.architectures import Architecture
from edgeinfer.models.architectures.lfm2 import TAPS_MAX, short_convolution
from edgeinfer.models.blocks import attention, embed, feed_forward, head, norm
from edgeinfer.models.hyperparameters import Hyperparameters
from edgeinfer.models.mixture import Mixture
from edgeinfer.models.model_graph import ModelGraph
from edgeinfer.models.rope import rope_table
from edgeinfer.models.sizes import Sizes


def build(hp: Hyperparameters) -> ModelSpec:
    """The spec of an LFM2 mixture. Raises BadGGUF where tensors or keys are missing."""
    g = ModelGraph(hp, Sizes.read(hp, mixture=True, hybrid=True))
    rope, mixture = rope_table(hp, g.sizes.rotary_width), Mixture.read(hp, g.sizes.ffn_width, normalised=True)
    taps = hp.integer("shortconv.l_cache", least=2, most=TAPS_MAX)
    n_dense = hp.integer("leading_dense_block_count", 0, least=0)
    embed(g)
    for number, attends in enumerate(g.sizes.attends):
        g.stage(f"blk.{number}")
        norm(g, "attn_norm")
        if attends:
            attention(g, rope, head_norms=True)
        else:
            short_convolution(g, taps)
        norm(g, "ffn_norm")
        if number < n_dense:
            feed_forward(g)
        else:
            mixture.add(g)
    return head(g, norm="token_embd_norm")


ARCHITECTURE = Architecture(build)
