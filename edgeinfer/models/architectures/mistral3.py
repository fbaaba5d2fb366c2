"""Ministral 3: Llama's layers; beyond the original context queries grow with the logarithm of their position.

Source: Ministral 3 (arXiv 2601.08584).
"""

from __future__ import annotations

from edgeinfer.graph.graph import ModelSpec
from edgeinfer.models.architectures import Architecture
from edgeinfer.models.decoder import decoder
from edgeinfer.models.hyperparameters import Hyperparameters
from edgeinfer.models.model_graph import ModelGraph
from edgeinfer.models.rope import growing_table, rope_table
from edgeinfer.models.sizes import Sizes


def build(hp: Hyperparameters) -> ModelSpec:
    """The spec of a Ministral 3. Raises BadGGUF where tensors or keys are missing, and as `growing_table` does."""
    g = ModelGraph(hp, Sizes.read(hp))
    query_rope = growing_table(hp, rope_table(hp, g.sizes.rotary_width), g.sizes.head_width)
    return decoder(g, paired=True, query_rope=query_rope)


ARCHITECTURE = Architecture(build)
