"""Hunyuan 3: Qwen 3's attention, and DeepSeek-V3's mixture of experts; layers without a router are dense."""

from __future__ import annotations

from edgeinfer.graph.graph import ModelSpec
from edgeinfer.models.architectures import Architecture
from edgeinfer.models.decoder import decoder
from edgeinfer.models.hyperparameters import Hyperparameters
from edgeinfer.models.mixture import SIGMOID_GATING, Mixture
from edgeinfer.models.model_graph import ModelGraph
from edgeinfer.models.sizes import Sizes


def build(hp: Hyperparameters) -> ModelSpec:
    """The spec of a Hunyuan 3. Raises BadGGUF where tensors or keys are missing."""
    g = ModelGraph(hp, Sizes.read(hp, mixture=True))
    mixture = Mixture.read(hp, g.sizes.ffn_width, normalised=False, shared_scored=False, gating=SIGMOID_GATING)
    return decoder(g, mixture.where_routed, head_norms=True)


ARCHITECTURE = Architecture(build, aliases=("hy-v3",))
