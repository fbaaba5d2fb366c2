"""Nomic's BERT: BERT with rotary embedding and a gated feed-forward network."""

from __future__ import annotations

from edgeinfer.graph.graph import ModelSpec
from edgeinfer.models.architectures import Architecture
from edgeinfer.models.blocks import embed, feed_forward
from edgeinfer.models.encoder import norm_embeddings, post_normed
from edgeinfer.models.hyperparameters import Hyperparameters
from edgeinfer.models.model_graph import ModelGraph
from edgeinfer.models.rope import rope_table
from edgeinfer.models.sizes import Sizes


def build(hp: Hyperparameters) -> ModelSpec:
    """The spec of a nomic-bert. Raises BadGGUF where tensors or keys are missing."""
    g = ModelGraph(hp, Sizes.read(hp, norms="layer"))
    embed(g)
    norm_embeddings(g)
    return post_normed(g, lambda g, source: feed_forward(g, source=source), rope=rope_table(hp, g.sizes.rotary_width))


ARCHITECTURE = Architecture(build, spelling="nomic-bert")
