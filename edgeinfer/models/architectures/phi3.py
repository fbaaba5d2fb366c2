"""Phi 3, 3.5 and 4 (dense): Llama's layers with query-key-value in one tensor, gate and up in another.

Rotary pairs are half-split, over the whole head or part of it; LongRoPE factors and windows are used if the file has
them. Source: Phi-3 Technical Report (arXiv 2404.14219).
"""

from __future__ import annotations

from edgeinfer.graph.graph import ModelSpec
from edgeinfer.models.architectures import Architecture
from edgeinfer.models.blocks import attention, embed, feed_forward, head, norm
from edgeinfer.models.hyperparameters import Hyperparameters
from edgeinfer.models.model_graph import ModelGraph
from edgeinfer.models.rope import rope_table
from edgeinfer.models.sizes import Sizes, windows


def build(hp: Hyperparameters) -> ModelSpec:
    """The spec of a Phi 3 model. Raises BadGGUF where tensors or keys are missing."""
    g = ModelGraph(hp, Sizes.read(hp))
    rope = rope_table(hp, g.sizes.rotary_width)
    embed(g)
    for number, window in enumerate(windows(hp, g.sizes)):
        g.stage(f"blk.{number}")
        norm(g, "attn_norm")
        attention(g, rope, window=window)
        norm(g, "ffn_norm")
        feed_forward(g, fused=True)
    return head(g)


ARCHITECTURE = Architecture(build)
