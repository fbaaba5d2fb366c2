"""Baichuan 1 and 2: Llama's layers; those of 13B have ALiBi. Source: Baichuan 2 (arXiv 2309.10305)."""

from __future__ import annotations

from edgeinfer.graph.graph import ModelSpec
from edgeinfer.models.architectures import Architecture
from edgeinfer.models.decoder import decoder
from edgeinfer.models.hyperparameters import Hyperparameters
from edgeinfer.models.model_graph import ModelGraph
from edgeinfer.models.sizes import Sizes

ALIBI, LAYERS_OF_13B = 8.0, 40
"""Files do not say which kind of attention they have."""


def build(hp: Hyperparameters) -> ModelSpec:
    """The spec of a Baichuan. Raises BadGGUF where tensors or keys are missing."""
    g = ModelGraph(hp, Sizes.read(hp))
    return decoder(g, alibi=ALIBI) if g.sizes.n_layers >= LAYERS_OF_13B else decoder(g, paired=True)


ARCHITECTURE = Architecture(build)
