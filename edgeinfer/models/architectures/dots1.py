"""dots.llm1: Qwen 3's attention, and DeepSeek-V3's mixture of experts with sigmoid shares; the first layers are dense.

Source: dots.llm1 (arXiv 2506.05767).
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
    """The spec of a dots.llm1. Raises BadGGUF where tensors or keys are missing."""
    g = ModelGraph(hp, Sizes.read(hp, mixture=True))
    return decoder(g, Mixture.read_sigmoid(hp, g.sizes, normalised=False).after_dense, head_norms=True)


ARCHITECTURE = Architecture(build)
