"""Granite 3 and 4 (dense): Llama's layers with four scales: of embeddings, scores, branch outputs and logits.

Logits are divided by the file's logit scale. Some models have no rotary embedding: the file sets
`rope.scaling.finetuned` to false. Source: Granite 3.0 Language Models (IBM, 2024), which follow muP (Yang et al., arXiv
2203.03466).
"""

from __future__ import annotations

from edgeinfer.graph.graph import ModelSpec
from edgeinfer.models.architectures import Architecture
from edgeinfer.models.blocks import attention, embed, feed_forward, head, join, norm
from edgeinfer.models.hyperparameters import Hyperparameters
from edgeinfer.models.model_graph import ModelGraph
from edgeinfer.models.rope import rope_table
from edgeinfer.models.sizes import Sizes


def build(hp: Hyperparameters) -> ModelSpec:
    """The spec of a dense Granite. Raises BadGGUF where tensors or keys are missing."""
    g = ModelGraph(hp, Sizes.read(hp))
    begin(g)
    layers(g, hp.number("residual_scale", 0.0) or 1.0)
    return end(g)


def begin(g: ModelGraph) -> None:
    """Scaled embeddings."""
    embed(g, g.hp.number("embedding_scale", 0.0) or 1.0)


def layers(g: ModelGraph, residual: float) -> None:
    """All layers; their branches are scaled by `residual`."""
    for number in range(g.sizes.n_layers):
        g.stage(f"blk.{number}")
        attend(g, residual)
        norm(g, "ffn_norm")
        feed_forward(g, out="branch")
        join(g, residual)


def attend(g: ModelGraph, residual: float, *, window: int | None = None, rotates: bool = True) -> None:
    """A norm and attention, added to `x` after scaling by `residual`."""
    rotates = rotates and g.hp.flag("rope.scaling.finetuned", default=True)
    rope = rope_table(g.hp, g.sizes.rotary_width) if rotates else None
    norm(g, "attn_norm")
    attention(g, rope, paired=True, window=window, out="branch")
    join(g, residual)


def end(g: ModelGraph) -> ModelSpec:
    """The head; logits are divided by the file's scale."""
    return head(g, scale=1.0 / g.hp.positive("logit_scale"))


ARCHITECTURE = Architecture(build)
