"""Nemotron-H with experts (Nemotron 3 Nano, Super): squared ReLUs without gates, and a shared expert.

Shares are sigmoids, chosen with a bias. Experts of the larger models read and write narrower rows, which the layer
makes from its own. In Puzzle, layers differ in how many experts a token has, and in their width. Source: Nemotron 3
(NVIDIA, 2025).
"""

from __future__ import annotations

from dataclasses import replace

from edgeinfer.errors import UnsupportedModel
from edgeinfer.graph.graph import ModelSpec
from edgeinfer.models.architectures import Architecture
from edgeinfer.models.architectures.nemotron_h import layers
from edgeinfer.models.hyperparameters import Hyperparameters
from edgeinfer.models.mixture import SIGMOID_GATING, Mixture
from edgeinfer.models.model_graph import ModelGraph
from edgeinfer.models.sizes import Sizes


def build(hp: Hyperparameters) -> ModelSpec:
    """The spec of such a Nemotron-H. Raises BadGGUF where tensors or keys are missing."""
    g = ModelGraph(hp, Sizes.read(hp, mixture=True, hybrid=True))
    return layers(g, lambda g: _mixture(hp, g.sizes, g.number).add(g))


def _mixture(hp: Hyperparameters, sizes: Sizes, layer: int) -> Mixture:
    """The mixture of a layer. Raises UnsupportedModel for groups of which the file does not say how many are used."""
    n_groups = hp.integer("expert_group_count", 0, least=0)
    if n_groups > 1 and not hp.has("expert_group_used_count"):
        raise UnsupportedModel(
            f"{hp.architecture} has {n_groups} groups of experts, and the file does not say from how many of them a "
            "token's are chosen"
        )
    found = Mixture.read(
        *(hp, sizes.ffn_width),
        normalised=True,
        activation="relu2",
        shared_scored=False,
        gating=SIGMOID_GATING,
        layer=layer,
    )
    return replace(found, gated=False, latent_width=hp.integer("moe_latent_size", 0, least=0))


ARCHITECTURE = Architecture(build)
