"""Qwen 1.5, 2 and 2.5: Llama's layers with biases on query, key and value, and half-split rotary pairs."""

from __future__ import annotations

from edgeinfer.graph.graph import ModelSpec
from edgeinfer.models.architectures import Architecture
from edgeinfer.models.blocks import attention, embed, feed_forward, head, norm
from edgeinfer.models.hyperparameters import Hyperparameters
from edgeinfer.models.model_graph import ModelGraph
from edgeinfer.models.rope import rope_table
from edgeinfer.models.sizes import Sizes, windows


def build(hp: Hyperparameters) -> ModelSpec:
    """The spec of a Qwen 2 model. Raises BadGGUF where tensors or keys are missing."""
    g = ModelGraph(hp, Sizes.read(hp))
    rope = rope_table(hp, g.sizes.rotary_width)
    embed(g)
    for number, window in enumerate(windows(hp, g.sizes)):
        g.stage(f"blk.{number}")
        norm(g, "attn_norm")
        attention(g, rope, window=window)
        norm(g, "ffn_norm")
        feed_forward(g)
    return head(g)


ARCHITECTURE = Architecture(build, aliases=("qwen2vl",), axes="contiguous")
