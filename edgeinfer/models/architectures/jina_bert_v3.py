"""Jina Embeddings v3 without its adapters: XLM-RoBERTa with rotary embedding instead of learned positions."""

from __future__ import annotations

from edgeinfer.graph.graph import ModelSpec
from edgeinfer.models.architectures import Architecture
from edgeinfer.models.blocks import embed
from edgeinfer.models.encoder import norm_embeddings, post_normed
from edgeinfer.models.hyperparameters import Hyperparameters
from edgeinfer.models.model_graph import ModelGraph
from edgeinfer.models.ranking import without_classifier
from edgeinfer.models.rope import rope_table
from edgeinfer.models.sizes import Sizes


def build(hp: Hyperparameters) -> ModelSpec:
    """The spec of a jina-bert-v3. Raises BadGGUF where tensors or keys are missing."""
    without_classifier(hp)
    g = ModelGraph(hp, Sizes.read(hp, norms="layer"))
    embed(g)
    norm_embeddings(g)
    return post_normed(g, rope=rope_table(hp, g.sizes.rotary_width))


ARCHITECTURE = Architecture(build, spelling="jina-bert-v3")
