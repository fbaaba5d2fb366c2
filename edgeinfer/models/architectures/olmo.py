"""OLMo: Llama's layers with LayerNorms that have neither weight nor bias; some clip queries, keys and values.

Source: OLMo (Groeneveld et al., arXiv 2402.00838).
"""

from __future__ import annotations

from edgeinfer.graph.graph import ModelSpec
from edgeinfer.models.architectures import Architecture
from edgeinfer.models.decoder import decoder
from edgeinfer.models.hyperparameters import Hyperparameters
from edgeinfer.models.model_graph import ModelGraph
from edgeinfer.models.sizes import Sizes


def build(hp: Hyperparameters) -> ModelSpec:
    """The spec of an OLMo. Raises BadGGUF where tensors or keys are missing."""
    clip = hp.number("attention.clamp_kqv", 0.0) or None
    return decoder(ModelGraph(hp, Sizes.read(hp, norms="bare layer")), paired=True, clip=clip)


ARCHITECTURE = Architecture(build)
