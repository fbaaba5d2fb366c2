"""Qwen 3 (dense): Qwen 2 without biases, with RMSNorm of each query and key head before the rotary embedding.

Source: Qwen3 Technical Report (arXiv 2505.09388).
"""

from __future__ import annotations

from edgeinfer.graph.graph import ModelSpec
from edgeinfer.models.architectures import Architecture
from edgeinfer.models.decoder import decoder
from edgeinfer.models.hyperparameters import Hyperparameters
from edgeinfer.models.model_graph import ModelGraph
from edgeinfer.models.ranking import ranks
from edgeinfer.models.sizes import Sizes


def build(hp: Hyperparameters) -> ModelSpec:
    """The spec of a dense Qwen 3 model. Raises BadGGUF where tensors or keys are missing."""
    g = ModelGraph(hp, Sizes.read(hp))
    ranks(g, row="last")
    return decoder(g, head_norms=True)


ARCHITECTURE = Architecture(build, aliases=("qwen3vl",), axes="interleaved")
