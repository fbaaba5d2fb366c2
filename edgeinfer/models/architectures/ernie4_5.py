"""ERNIE 4.5, dense: Llama's layers."""

from __future__ import annotations

from edgeinfer.graph.graph import ModelSpec
from edgeinfer.models.architectures import Architecture
from edgeinfer.models.decoder import decoder
from edgeinfer.models.hyperparameters import Hyperparameters
from edgeinfer.models.model_graph import ModelGraph
from edgeinfer.models.sizes import Sizes


def build(hp: Hyperparameters) -> ModelSpec:
    """The spec of an ERNIE 4.5. Raises BadGGUF where tensors or keys are missing."""
    return decoder(ModelGraph(hp, Sizes.read(hp)), paired=True)


ARCHITECTURE = Architecture(build)
