"""Mamba: layers of nothing but its state space, so that a model caches no keys or values. Falcon Mamba has norms in it.

Source: Mamba (Gu & Dao, arXiv 2312.00752).
"""

from __future__ import annotations

from edgeinfer.graph.graph import ModelSpec
from edgeinfer.models.architectures import Architecture
from edgeinfer.models.hyperparameters import Hyperparameters
from edgeinfer.models.model_graph import ModelGraph
from edgeinfer.models.sizes import Sizes
from edgeinfer.models.state_spaces import Mamba, recurrent


def build(hp: Hyperparameters) -> ModelSpec:
    """The spec of a Mamba. Raises BadGGUF where tensors or keys are missing."""
    return recurrent(ModelGraph(hp, Sizes.read(hp, recurrent=True)), Mamba.read(hp).add)


ARCHITECTURE = Architecture(build)
