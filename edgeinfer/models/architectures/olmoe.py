"""OLMoE: Llama's layers with half-split rotary pairs, RMSNorm over all query and over all key heads, and experts.

The shares of a token do not add up to one. Source: OLMoE: Open Mixture-of-Experts Language Models (arXiv 2409.02060).
"""

from __future__ import annotations

from edgeinfer.graph.graph import ModelSpec
from edgeinfer.models.architectures import Architecture
from edgeinfer.models.decoder import decoder
from edgeinfer.models.hyperparameters import Hyperparameters
from edgeinfer.models.mixture import Mixture
from edgeinfer.models.model_graph import ModelGraph
from edgeinfer.models.sizes import Sizes


def build(hp: Hyperparameters) -> ModelSpec:
    """The spec of an OLMoE. Raises BadGGUF where tensors or keys are missing."""
    g = ModelGraph(hp, Sizes.read(hp, mixture=True))
    mixture = Mixture.read(hp, g.sizes.ffn_width, normalised=False)
    return decoder(g, mixture.add, whole_norms=True, clip=hp.number("attention.clamp_kqv", 0.0) or None)


ARCHITECTURE = Architecture(build)
