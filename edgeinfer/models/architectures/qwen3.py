"""Qwen 3 (dense): Qwen 2 without biases, with RMSNorm of each query and key head before the rotary embedding.

Source: Qwen3 Technical Report (arXiv 2505.09388).
"""

from __future__ import annotations

from edgeinfer.graph.graph import ModelSpec
from edgeinfer.models.architectures import Architecture
from edgeinfer.models.blocks import attention, embed, feed_forward, head, norm, ranks
from edgeinfer.models.hyperparameters import Hyperparameters
from edgeinfer.models.model_graph import ModelGraph
from edgeinfer.models.rope import rope_table
from edgeinfer.models.sizes import Sizes, windows


def build(hp: Hyperparameters) -> ModelSpec:
    """The spec of a dense Qwen 3 model. Raises BadGGUF where tensors or keys are missing."""
    g = ModelGraph(hp, Sizes.read(hp))
    rope = rope_table(hp, g.sizes.rotary_width)
    ranks(g)
    embed(g)
    for number, window in enumerate(windows(hp, g.sizes)):
        g.stage(f"blk.{number}")
        norm(g, "attn_norm")
        attention(g, rope, window=window, head_norms=True)
        norm(g, "ffn_norm")
        feed_forward(g)
    return head(g)


ARCHITECTURE = Architecture(build, aliases=("qwen3vl",), axes="interleaved")
