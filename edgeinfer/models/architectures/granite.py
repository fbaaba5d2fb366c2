"""Granite 3 and 4 (dense): Llama's layers with four scales, of embeddings, scores, finished branches and logits.

The file's logit scale divides. Some have no rotary embedding at all: the file says `rope.scaling.finetuned` is false.
Source: Granite 3.0 Language Models (IBM, 2024), which follow muP (Yang et al., arXiv 2203.03466).
"""

from __future__ import annotations

from edgeinfer.graph.graph import ModelSpec
from edgeinfer.models.architectures import Architecture
from edgeinfer.models.blocks import attention, embed, feed_forward, head, join, norm
from edgeinfer.models.hyperparameters import Hyperparameters
from edgeinfer.models.model_graph import ModelGraph
from edgeinfer.models.rope_metadata import rope_table
from edgeinfer.models.sizes import Sizes


def build(hp: Hyperparameters) -> ModelSpec:
    """The spec of a dense Granite. Raises BadGGUF where tensors or keys are missing."""
    g = ModelGraph(hp, Sizes.read(hp))
    residual = hp.number("residual_scale", 0.0) or 1.0
    begin(g)
    for number in range(g.sizes.n_layers):
        g.stage(f"blk.{number}")
        attend(g, residual)
        norm(g, "ffn_norm")
        feed_forward(g, out="branch")
        join(g, residual)
    return end(g)


def begin(g: ModelGraph) -> None:
    """Embeddings times their scale."""
    embed(g, g.hp.number("embedding_scale", 0.0) or 1.0)


def attend(g: ModelGraph, residual: float) -> None:
    """A norm and attention, which are added to `x` times `residual`."""
    rotates = g.hp.flag("rope.scaling.finetuned", default=True)
    norm(g, "attn_norm")
    attention(g, rope_table(g.hp, g.sizes.rotary_width) if rotates else None, paired=True, out="branch")
    join(g, residual)


def end(g: ModelGraph) -> ModelSpec:
    """The head, whose logits the file's scale divides."""
    return head(g, scale=1.0 / g.hp.positive("logit_scale"))


ARCHITECTURE = Architecture(build)
