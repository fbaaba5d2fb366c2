"""Ling 2.0 and Sarvam: Qwen 3's attention, and DeepSeek-V3's mixture of experts; the first layers are dense.

Ling rotates half of each head, Sarvam all of it. Source: Ling 2.0 (arXiv 2510.22115).
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
    """The spec of a Ling 2.0. Raises BadGGUF where tensors or keys are missing."""
    g = ModelGraph(hp, Sizes.read(hp, mixture=True))
    mixture = Mixture.read_sigmoid(hp, g.sizes, normalised=False)
    return decoder(g, mixture.after_dense, head_norms=True)


ARCHITECTURE = Architecture(build)
