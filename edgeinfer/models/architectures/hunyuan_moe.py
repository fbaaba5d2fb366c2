"""Hunyuan's mixtures: the dense model's attention; experts whose shares add up to one, and a shared expert."""

from __future__ import annotations

from edgeinfer.graph.graph import ModelSpec
from edgeinfer.models.architectures import Architecture
from edgeinfer.models.decoder import decoder
from edgeinfer.models.hyperparameters import Hyperparameters
from edgeinfer.models.mixture import Mixture
from edgeinfer.models.model_graph import ModelGraph
from edgeinfer.models.sizes import Sizes


def build(hp: Hyperparameters) -> ModelSpec:
    """The spec of a Hunyuan mixture. Raises BadGGUF where tensors or keys are missing."""
    g = ModelGraph(hp, Sizes.read(hp, mixture=True))
    mixture = Mixture.read(hp, g.sizes.ffn_width, normalised=True, shared_scored=False)
    return decoder(g, mixture.add, head_norms="rotated")


ARCHITECTURE = Architecture(build, spelling="hunyuan-moe")
