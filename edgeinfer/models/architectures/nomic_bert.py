"""Nomic's BERT: BERT with rotary embedding and a gated feed-forward network."""

from __future__ import annotations

from edgeinfer.graph.graph import ModelSpec
from edgeinfer.models.architectures import Architecture
from edgeinfer.models.architectures.bert import norm_embeddings
from edgeinfer.models.blocks import attention, embed, feed_forward, hidden_head, norm_in_place
from edgeinfer.models.hyperparameters import Hyperparameters
from edgeinfer.models.model_graph import ModelGraph
from edgeinfer.models.rope import rope_table
from edgeinfer.models.sizes import Sizes


def build(hp: Hyperparameters) -> ModelSpec:
    """The spec of a nomic-bert. Raises BadGGUF where tensors or keys are missing."""
    g = ModelGraph(hp, Sizes.read(hp, norms="layer"))
    rope = rope_table(hp, g.sizes.rotary_width)
    embed(g)
    norm_embeddings(g)
    for number in range(g.sizes.n_layers):
        g.stage(f"blk.{number}")
        attention(g, rope, causal=False, source="x")
        norm_in_place(g, "attn_output_norm")
        feed_forward(g, source="x")
        norm_in_place(g, "layer_output_norm")
    return hidden_head(g)


ARCHITECTURE = Architecture(build, spelling="nomic-bert")
