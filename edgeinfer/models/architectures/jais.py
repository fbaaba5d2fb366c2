"""Jais: LayerNorms, gated SiLU, biases in all products, ALiBi; scores are divided by the head width.

Source: Jais (arXiv 2308.16149).
"""

from __future__ import annotations

from edgeinfer.graph.graph import ModelSpec
from edgeinfer.models.architectures import Architecture
from edgeinfer.models.decoder import decoder
from edgeinfer.models.hyperparameters import Hyperparameters
from edgeinfer.models.model_graph import ModelGraph
from edgeinfer.models.sizes import Sizes


def build(hp: Hyperparameters) -> ModelSpec:
    """The spec of a Jais. Raises BadGGUF where tensors or keys are missing."""
    g = ModelGraph(hp, Sizes.read(hp, norms="layer"))
    return decoder(g, scale=1.0 / g.sizes.head_width, alibi=hp.positive("attention.max_alibi_bias"))


ARCHITECTURE = Architecture(build)
