"""BitNet b1.58: Llama's layers with RMSNorms of what the last product of each branch reads.

Weights are ternary, in formats such as TQ1_0 and TQ2_0. Files of the 2B4T model need `feed_forward_activation` relu2.
Source: The Era of 1-bit LLMs (arXiv 2402.17764).
"""

from __future__ import annotations

from edgeinfer.graph.graph import ModelSpec
from edgeinfer.models.architectures import Architecture
from edgeinfer.models.decoder import decoder
from edgeinfer.models.hyperparameters import Hyperparameters
from edgeinfer.models.model_graph import ModelGraph
from edgeinfer.models.sizes import Sizes


def build(hp: Hyperparameters) -> ModelSpec:
    """The spec of a BitNet. Raises BadGGUF where tensors or keys are missing."""
    return decoder(ModelGraph(hp, Sizes.read(hp)))


ARCHITECTURE = Architecture(build)
