"""OpenELM: Llama's layers with heads and feed-forward networks that grow from layer to layer.

Queries, keys and values are one tensor; queries and keys are normed per head; rotary pairs are half-split. Source:
OpenELM (Mehta et al., arXiv 2404.14619).
"""

from __future__ import annotations

from edgeinfer.graph.graph import ModelSpec
from edgeinfer.models.architectures import Architecture
from edgeinfer.models.decoder import decoder
from edgeinfer.models.hyperparameters import Hyperparameters
from edgeinfer.models.model_graph import ModelGraph
from edgeinfer.models.sizes import Sizes


def build(hp: Hyperparameters) -> ModelSpec:
    """The spec of an OpenELM. Raises BadGGUF where tensors or keys are missing."""
    return decoder(ModelGraph(hp, Sizes.read(hp)), head_norms=True)


ARCHITECTURE = Architecture(build)
