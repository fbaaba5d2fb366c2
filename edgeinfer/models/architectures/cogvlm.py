"""The text part of CogVLM: Llama's layers; the matrices that image tokens would use are not read.

Source: CogVLM (arXiv 2311.03079).
"""

from __future__ import annotations

from edgeinfer.graph.graph import ModelSpec
from edgeinfer.models.architectures import Architecture
from edgeinfer.models.decoder import decoder
from edgeinfer.models.hyperparameters import Hyperparameters
from edgeinfer.models.model_graph import ModelGraph
from edgeinfer.models.sizes import Sizes


def build(hp: Hyperparameters) -> ModelSpec:
    """The spec of the text part. Raises BadGGUF where tensors or keys are missing."""
    return decoder(ModelGraph(hp, Sizes.read(hp)))


ARCHITECTURE = Architecture(build, unread=r"blk\.\d+\.vis_.*")
