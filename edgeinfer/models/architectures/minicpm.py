"""MiniCPM 1 and 2: Granite's layers, with scaled embeddings, branches and logits. Source: arXiv 2404.06395."""

from __future__ import annotations

from math import sqrt

from edgeinfer.graph.graph import ModelSpec
from edgeinfer.models.architectures import Architecture
from edgeinfer.models.architectures.granite import layers
from edgeinfer.models.blocks import embed, head
from edgeinfer.models.hyperparameters import Hyperparameters
from edgeinfer.models.model_graph import ModelGraph
from edgeinfer.models.sizes import Sizes

EMBEDDING_SCALE, DEPTH_SCALE, BASE_WIDTH = 12.0, 1.4, 256
"""The scales of models whose files do not have them."""


def build(hp: Hyperparameters) -> ModelSpec:
    """The spec of a MiniCPM. Raises BadGGUF where tensors or keys are missing."""
    g = ModelGraph(hp, Sizes.read(hp))
    embed(g, hp.number("embedding_scale", 0.0) or EMBEDDING_SCALE)
    layers(g, hp.number("residual_scale", 0.0) or DEPTH_SCALE / sqrt(g.sizes.n_layers))
    return head(g, scale=1.0 / (hp.number("logit_scale", 0.0) or g.sizes.width / BASE_WIDTH))


ARCHITECTURE = Architecture(build)
