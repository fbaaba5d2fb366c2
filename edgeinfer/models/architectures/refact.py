"""Refact: Llama's layers with ALiBi (Press et al., arXiv 2108.12409) in place of rotation."""

from __future__ import annotations

from edgeinfer.graph.graph import ModelSpec
from edgeinfer.models.architectures import Architecture
from edgeinfer.models.decoder import decoder
from edgeinfer.models.hyperparameters import Hyperparameters
from edgeinfer.models.model_graph import ModelGraph
from edgeinfer.models.sizes import Sizes

ALIBI = 8.0


def build(hp: Hyperparameters) -> ModelSpec:
    """The spec of a Refact. Raises BadGGUF where tensors or keys are missing."""
    return decoder(ModelGraph(hp, Sizes.read(hp)), alibi=ALIBI)


ARCHITECTURE = Architecture(build)
