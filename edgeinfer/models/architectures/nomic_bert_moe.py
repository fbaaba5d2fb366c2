"""Nomic's BERT with experts (nomic-embed-text v2): GELUs without gates, dense in every layer that has no experts.

The shares of a token do not add up to one. Source: Training Sparse Mixture Of Experts Text Embedding Models (arXiv
2502.07972).
"""

from __future__ import annotations

from dataclasses import replace

from edgeinfer.graph.graph import ModelSpec
from edgeinfer.models.architectures import Architecture
from edgeinfer.models.blocks import embed
from edgeinfer.models.encoder import norm_embeddings, plain_feed, post_normed
from edgeinfer.models.hyperparameters import Hyperparameters
from edgeinfer.models.mixture import Mixture
from edgeinfer.models.model_graph import ModelGraph
from edgeinfer.models.ranking import without_classifier
from edgeinfer.models.rope import rope_table
from edgeinfer.models.sizes import Sizes


def build(hp: Hyperparameters) -> ModelSpec:
    """The spec of a nomic-bert-moe. Raises BadGGUF where tensors or keys are missing."""
    without_classifier(hp)
    g = ModelGraph(hp, Sizes.read(hp, norms="layer", mixture=True))
    mixture = replace(Mixture.read(hp, g.sizes.ffn_width, normalised=False, activation="gelu"), gated=False)
    period = hp.integer("moe_every_n_layers", 0, least=0)

    def feed(g: ModelGraph, source: str) -> None:
        if period and g.number % period == 1:
            mixture.add_routed(g, "x", scored=source, source=source)
        else:
            plain_feed(g, source)

    embed(g)
    norm_embeddings(g)
    return post_normed(g, feed, rope=rope_table(hp, g.sizes.rotary_width))


ARCHITECTURE = Architecture(build, spelling="nomic-bert-moe")
