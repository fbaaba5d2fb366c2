"""Mamba-2: layers of nothing but its state space, so that a model caches no keys or values. Mamba-Codestral has groups.

Source: Mamba-2 (Dao & Gu, arXiv 2405.21060).
"""

from __future__ import annotations

from edgeinfer.graph.graph import ModelSpec
from edgeinfer.models.architectures import Architecture
from edgeinfer.models.hyperparameters import Hyperparameters
from edgeinfer.models.mamba2 import Mamba2
from edgeinfer.models.model_graph import ModelGraph
from edgeinfer.models.sizes import Sizes
from edgeinfer.models.state_spaces import recurrent


def build(hp: Hyperparameters) -> ModelSpec:
    """The spec of a Mamba-2. Raises BadGGUF where tensors or keys are missing."""
    return recurrent(ModelGraph(hp, Sizes.read(hp, recurrent=True)), Mamba2.read(hp).add)


ARCHITECTURE = Architecture(build)
