"""OPT: LayerNorm before each branch, learned positions, biases everywhere, ReLU without a gate.

Row `position + 2` of the position table is added to the embedding. Other programs define no GGUF keys for this family;
docs/GGUF_KEYS.md describes the ones used. Source: Zhang et al., arXiv 2205.01068.
"""

from __future__ import annotations

from functools import partial

from edgeinfer.errors import UnsupportedModel
from edgeinfer.graph.graph import ModelSpec
from edgeinfer.models.architectures import Architecture
from edgeinfer.models.blocks import feed_forward, learned_positions
from edgeinfer.models.decoder import decoder
from edgeinfer.models.hyperparameters import Hyperparameters
from edgeinfer.models.model_graph import ModelGraph
from edgeinfer.models.sizes import Sizes

FIRST_POSITION = 2
"""Row of the position table for position 0."""


def build(hp: Hyperparameters) -> ModelSpec:
    """The spec of an OPT model. Raises BadGGUF, UnsupportedModel for variants, BadSetting for too long a context."""
    g = ModelGraph(hp, Sizes.read(hp, norms="layer"))
    if not hp.flag("use_pre_norm", default=True):
        raise UnsupportedModel(
            "this OPT norms after its branches, as opt-350m does; edgeinfer has those that norm before"
        )
    if {"project_in.weight", "project_out.weight"} & hp.tensors.keys():
        raise UnsupportedModel(
            "this OPT has embeddings of another width than its layers; edgeinfer has others of OPT only"
        )
    positions = learned_positions(hp, g.sizes, FIRST_POSITION)
    return decoder(g, partial(feed_forward, activation="relu", gate="none"), positions=positions)


ARCHITECTURE = Architecture(build)
