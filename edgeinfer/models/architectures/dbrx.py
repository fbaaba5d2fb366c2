"""DBRX: LayerNorms without biases, clipped queries, keys and values, and experts whose shares add up to one.

Source: DBRX's code in transformers.
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
    """The spec of a DBRX. Raises BadGGUF where tensors or keys are missing."""
    g = ModelGraph(hp, Sizes.read(hp, mixture=True, norms="unbiased layer"))
    mixture = Mixture.read(hp, g.sizes.ffn_width, normalised=True)
    return decoder(g, mixture.add, ffn_norm="attn_output_norm", clip=hp.positive("attention.clamp_kqv"))


ARCHITECTURE = Architecture(build)
