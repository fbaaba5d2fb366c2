"""Qwen 3's mixtures of experts: Qwen 3 with experts, whose shares add up to one, as the feed-forward branch."""

from __future__ import annotations

from edgeinfer.graph.graph import ModelSpec
from edgeinfer.models.architectures import Architecture
from edgeinfer.models.decoder import decoder
from edgeinfer.models.hyperparameters import Hyperparameters
from edgeinfer.models.mixture import Mixture
from edgeinfer.models.model_graph import ModelGraph
from edgeinfer.models.sizes import Sizes


def build(hp: Hyperparameters) -> ModelSpec:
    """The spec of a Qwen 3 mixture. Raises BadGGUF where tensors or keys are missing."""
    g = ModelGraph(hp, Sizes.read(hp, mixture=True))
    mixture = Mixture.read(hp, g.sizes.ffn_width // hp.integer("expert_used_count"), normalised=True)
    return decoder(g, mixture.add, head_norms=True)


ARCHITECTURE = Architecture(build, aliases=("qwen3vlmoe",), axes="interleaved")
