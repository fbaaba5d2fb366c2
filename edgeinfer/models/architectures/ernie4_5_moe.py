"""ERNIE 4.5's mixtures: the dense model's attention; experts are chosen by softmax plus a bias per expert.

The first layers are dense, and after them one in `interleave_moe_layer_step` has experts, with shared ones.
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
    """The spec of an ERNIE 4.5 mixture. Raises BadGGUF where tensors or keys are missing."""
    g = ModelGraph(hp, Sizes.read(hp, mixture=True))
    mixture = Mixture.read(hp, g.sizes.ffn_width, normalised=True, shared_scored=False)
    return decoder(g, mixture.after_dense, paired=True)


ARCHITECTURE = Architecture(build, spelling="ernie4_5-moe")
