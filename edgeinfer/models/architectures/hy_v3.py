"""Hunyuan 3: Qwen 3's attention, and DeepSeek-V3's mixture of experts; layers without a router are dense."""

from __future__ import annotations

from edgeinfer.graph.graph import ModelSpec
from edgeinfer.models.architectures import Architecture
from edgeinfer.models.decoder import decoder, head_of_decoder
from edgeinfer.models.hyperparameters import Hyperparameters
from edgeinfer.models.mixture import SIGMOID_GATING, Mixture
from edgeinfer.models.model_graph import ModelGraph
from edgeinfer.models.sizes import Sizes
from edgeinfer.models.trained_heads import TrainedHead


def build(hp: Hyperparameters) -> ModelSpec:
    """The spec of a Hunyuan 3. Raises BadGGUF where tensors or keys are missing."""
    g = ModelGraph(hp, Sizes.read(hp, mixture=True))
    return decoder(g, _mixture(g).where_routed, head_norms=True)


def guess(hp: Hyperparameters) -> TrainedHead:
    """The head of a Hunyuan 3 that guesses one token more: a layer with experts."""
    g = ModelGraph(hp, Sizes.read(hp, mixture=True, guessing=True))
    return head_of_decoder(g, _mixture(g).where_routed, head_norms=True)


def _mixture(g: ModelGraph) -> Mixture:
    return Mixture.read(g.hp, g.sizes.ffn_width, normalised=False, shared_scored=False, gating=SIGMOID_GATING)


ARCHITECTURE = Architecture(build, aliases=("hy-v3",), head=guess)
