"""Phi 3.5 MoE: Phi 3 with LayerNorms, biases, and two experts whose shares are those of a sparse mixer.

Source: Phi-3 Technical Report (arXiv 2404.14219), GRIN (arXiv 2409.12136).
"""

from __future__ import annotations

from dataclasses import replace

from edgeinfer.graph.graph import ModelSpec
from edgeinfer.models.architectures import Architecture
from edgeinfer.models.decoder import decoder
from edgeinfer.models.hyperparameters import Hyperparameters
from edgeinfer.models.mixture import Mixture
from edgeinfer.models.model_graph import ModelGraph
from edgeinfer.models.sizes import Sizes


def build(hp: Hyperparameters) -> ModelSpec:
    """The spec of a Phi 3.5 MoE. Raises BadGGUF where tensors or keys are missing."""
    g = ModelGraph(hp, Sizes.read(hp, mixture=True, norms="layer"))
    mixture = Mixture.read(hp, g.sizes.ffn_width, normalised=False)
    return decoder(g, replace(mixture, scoring="mixer").add)


ARCHITECTURE = Architecture(build)
